/* A load client: CONNECTIONS kept-alive connections, each with one request in flight.
 *
 * usage: load PORT CONNECTIONS REQUESTS EVENTS PATH < BODY
 * Sends BODY to PATH of 127.0.0.1:PORT until REQUESTS have been answered. Every answer must be a 200,
 * counted or chunked, with at least EVENTS events of a stream (0: it is no stream); anything else ends
 * the run with an error, so that nothing unexpected is timed. Prints the seconds that all took, then a
 * line for each answer: the microseconds from the first byte sent to the first byte of the answer's
 * body, and to its last byte.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, HEAD_BYTES = 16384, SILENCE_MS = 30000 };
enum state { HEAD, COUNTED, SIZE, DATA, DATA_END, TRAILER };

struct conn {
    int fd, events;
    enum state state;
    size_t to_send, head_len, left;
    double began, first;
    char head[HEAD_BYTES + 1], last;
};
static struct conn conns[MOST_CONNECTIONS];
static char *request;
static size_t request_len;
static long unsent, answered;
static double *first_us, *total_us;
static int epoll_fd, least_events;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void fail(const char *what, const char *more) {
    fprintf(stderr, "%s: %.600s\n", what, more);
    exit(1);
}

static void push(struct conn *c) {
    ssize_t sent = send(c->fd, request + request_len - c->to_send, c->to_send, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) fail("send", strerror(errno));
    if (sent > 0) c->to_send -= sent;
    struct epoll_event event = {.events = EPOLLIN | (c->to_send ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll", strerror(errno));
}

static void ask(struct conn *c) {
    if (unsent-- <= 0) return;
    c->state = HEAD;
    c->head_len = c->events = 0;
    c->first = 0;
    c->to_send = request_len;
    c->began = now_us();
    push(c);
}

static void finish(struct conn *c) {
    if (c->events < least_events) fail("an answer with too few events", c->head);
    first_us[answered] = c->first - c->began;
    total_us[answered++] = now_us() - c->began;
    ask(c);
}

/* Counts the blank lines that end events, also where one came in two parts. */
static void count_events(struct conn *c, const char *data, size_t len) {
    if (!c->first) c->first = now_us(), c->last = 0;
    if (!least_events) return;
    for (const char *at = data, *end = data + len; (at = memchr(at, '\n', end - at)); at++)
        if ((at > data ? at[-1] : c->last) == '\n') c->events++;
    c->last = data[len - 1];
}

static void begin_body(struct conn *c) {
    c->head[c->head_len] = 0;
    if (strncmp(c->head, "HTTP/1.1 200 ", 13)) fail("not a 200", c->head);
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (strcasestr(c->head, "\r\ntransfer-encoding: chunked")) c->state = SIZE;
    else if (length) c->state = COUNTED, c->left = strtoul(length + 17, NULL, 10);
    else fail("a body of unknown length", c->head);
    c->head_len = 0;
}

/* Takes what has come of a line; whether it is whole, without its end, in `head`. */
static int line(struct conn *c, const char **at, const char *end) {
    while (*at < end) {
        if (c->head_len >= HEAD_BYTES) fail("a line is too long", c->head);
        char byte = c->head[c->head_len++] = *(*at)++;
        if (byte == '\n') {
            c->head[c->head_len] = 0;
            c->head_len = 0;
            return 1;
        }
    }
    return 0;
}

static void take(struct conn *c, const char *at, const char *end) {
    while (at < end) {
        size_t here = end - at;
        switch (c->state) {
        case HEAD:
            if (c->head_len >= HEAD_BYTES) fail("a head is too long", c->head);
            c->head[c->head_len++] = *at++;
            if (c->head_len > 3 && !memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4)) begin_body(c);
            break;
        case COUNTED:
        case DATA:
            if (here > c->left) here = c->left;
            count_events(c, at, here);
            at += here;
            if ((c->left -= here)) break;
            if (c->state == COUNTED) finish(c);
            else c->state = DATA_END;
            break;
        case SIZE:
            if (!line(c, &at, end)) break;
            c->left = strtoul(c->head, NULL, 16);
            c->state = c->left ? DATA : TRAILER;
            break;
        case DATA_END:
            if (line(c, &at, end)) c->state = SIZE;
            break;
        case TRAILER:
            if (line(c, &at, end) && c->head[0] == '\r') finish(c);
        }
    }
}

static void receive(struct conn *c) {
    static char data[1 << 18];
    ssize_t got = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
    if (got > 0) take(c, data, data + got);
    else if (got == 0) fail("the server closed a connection", c->head);
    else if (errno != EAGAIN) fail("recv", strerror(errno));
}

static void open_conn(struct conn *c, int port) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(c->fd, (void *)&where, sizeof where)) fail("connect", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

int main(int argc, char **argv) {
    if (argc != 6) fail("usage", "load PORT CONNECTIONS REQUESTS EVENTS PATH < BODY");
    int port = atoi(argv[1]), connections = atoi(argv[2]);
    long requests = unsent = atol(argv[3]);
    least_events = atoi(argv[4]);
    if (connections > MOST_CONNECTIONS) fail("connections", "too many");
    static char body[1 << 22];
    size_t body_len = fread(body, 1, sizeof body, stdin);
    request = malloc(body_len + 1024);
    request_len = sprintf(request,
                          "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                          "authorization: Bearer key\r\ncontent-length: %zu\r\n\r\n",
                          argv[5], port, body_len);
    memcpy(request + request_len, body, body_len);
    request_len += body_len;
    epoll_fd = epoll_create1(0);
    for (int i = 0; i < connections; i++) open_conn(&conns[i], port);
    first_us = calloc(requests, sizeof *first_us);
    total_us = calloc(requests, sizeof *total_us);
    double began = now_us();
    for (int i = 0; i < connections; i++) ask(&conns[i]);
    struct epoll_event ready[256];
    while (answered < requests) {
        int count = epoll_wait(epoll_fd, ready, 256, SILENCE_MS);
        if (count == 0) fail("silence", "no answer for too long");
        for (int i = 0; i < count; i++) {
            struct conn *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT && c->to_send) push(c);
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
    printf("%.6f\n", (now_us() - began) / 1e6);
    for (long i = 0; i < requests; i++) printf("%.0f %.0f\n", first_us[i], total_us[i]);
    return 0;
}
