/* A fake engine: OpenAI's surface and nothing behind it, so that what is measured is the gateway.
 *
 * usage: engine SERVERS TICK_US
 * Binds SERVERS ports of 127.0.0.1, prints them on one line, and serves all from one thread. A stream
 * of N chunks sends the first at once and one at each tick, as an engine does at each of its steps.
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
#include <sys/timerfd.h>
#include <unistd.h>

enum { MOST_FDS = 65536, LONGEST_REQUEST = 1 << 23 };

struct conn {
    char *in, *out;
    size_t in_len, in_cap, out_len, out_cap;
    int chunks_left, chat, token_ids, open;
};
static struct conn conns[MOST_FDS];
static char is_listener[MOST_FDS];
static int epoll_fd, highest_fd;

static const char HEAD[] = "HTTP/1.1 %s\r\ncontent-type: %s\r\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"fake\",\"object\":\"model\","
                             "\"created\":1,\"owned_by\":\"vllm\"}]}";
static const char WHOLE[] =
    "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"%s\",\"created\":1,\"model\":\"fake\",\"choices\":"
    "[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":"
    "{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}";
static const char EVENT[] =
    "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"%s\",\"created\":1,\"model\":\"fake\","
    "\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":%s}]}\n\n";

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void close_conn(int fd) {
    struct conn *c = &conns[fd];
    free(c->in);
    free(c->out);
    memset(c, 0, sizeof *c);
    close(fd);
}

static void watch(int fd, uint32_t events, int op) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll_fd, op, fd, &event)) fail("epoll_ctl");
}

/* Sends at once what the socket takes and keeps the rest for later. */
static void send_bytes(int fd, const char *data, size_t len) {
    struct conn *c = &conns[fd];
    if (!c->out_len) {
        ssize_t sent = send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)len) return;
        if (sent > 0) data += sent, len -= sent;
    }
    if (c->out_len + len > c->out_cap) {
        c->out_cap = 2 * (c->out_len + len);
        if (!(c->out = realloc(c->out, c->out_cap))) fail("realloc");
    }
    memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
    watch(fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

static void flush(int fd) {
    struct conn *c = &conns[fd];
    ssize_t sent = send(fd, c->out, c->out_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    memmove(c->out, c->out + sent, c->out_len -= sent);
    if (!c->out_len) watch(fd, EPOLLIN, EPOLL_CTL_MOD);
}

static void answer(int fd, const char *status, const char *type, const char *body) {
    char text[1024];
    int head = snprintf(text, sizeof text, HEAD, status, type);
    int len = head + snprintf(text + head, sizeof text - head, "content-length: %zu\r\n\r\n%s",
                              strlen(body), body);
    send_bytes(fd, text, len);
}

static int put_chunk(char *to, size_t room, const char *event) {
    return snprintf(to, room, "%zx\r\n%s\r\n", strlen(event), event);
}

/* Sends the next chunk of a stream; with the last one goes the stream's end. */
static void send_chunk(int fd, char *text, int len, size_t room) {
    struct conn *c = &conns[fd];
    char event[512], content[64];
    int last = --c->chunks_left == 0;
    /* Never the same twice: LiteLLM ends a stream that repeats itself. */
    snprintf(content, sizeof content, c->chat ? "\"delta\":{\"content\":\" %d\"}" : "\"text\":\" %d\"",
             c->chunks_left);
    snprintf(event, sizeof event, EVENT, c->chat ? "chat.completion.chunk" : "text_completion", content,
             last ? "\"length\"" : "null", c->token_ids ? "[1234]" : "null");
    len += put_chunk(text + len, room - len, event);
    if (last) {
        len += put_chunk(text + len, room - len, "data: [DONE]\n\n");
        len += snprintf(text + len, room - len, "0\r\n\r\n");
    }
    send_bytes(fd, text, len);
}

static char *find(char *in, size_t len, const char *what) {
    char *at = memmem(in, len, what, strlen(what));
    return at ? at + strlen(what) : NULL;
}

static int is_true(char *body, size_t len, const char *name) {
    char *at = find(body, len, name);
    return at && !strncmp(at + strspn(at, " "), "true", 4);
}

static void generate(int fd, char *body, size_t len, int chat) {
    struct conn *c = &conns[fd];
    if (!is_true(body, len, "\"stream\":")) {
        char text[512];
        snprintf(text, sizeof text, WHOLE, chat ? "chat.completion" : "text_completion",
                 chat ? "\"message\":{\"role\":\"assistant\",\"content\":\" word\"}"
                      : "\"text\":\" word\"");
        answer(fd, "200 OK", "application/json", text);
        return;
    }
    char *most = find(body, len, "max_tokens\":"), text[1024];
    if (!most) most = find(body, len, "max_completion_tokens\":");
    c->chunks_left = most && atoi(most) > 0 ? atoi(most) : 16;
    c->chat = chat;
    c->token_ids = is_true(body, len, "\"return_token_ids\":");
    int head = snprintf(text, sizeof text, HEAD, "200 OK", "text/event-stream; charset=utf-8");
    head += snprintf(text + head, sizeof text - head, "transfer-encoding: chunked\r\n\r\n");
    send_chunk(fd, text, head, sizeof text);
}

/* Joins the chunks of a body in place; returns the bytes that they took, or 0 if some are missing. */
static size_t join_chunks(char *body, size_t have, size_t *length) {
    char *at = body, *to = body, *last = body + have, *line;
    for (;;) {
        if (!(line = find(at, last - at, "\r\n"))) return 0;
        size_t size = strtoul(at, NULL, 16);
        if ((size_t)(last - line) < size + 2) return 0;
        at = line + size + 2;
        if (!size) break;
    }
    *length = 0;
    for (at = body;; at = line + *length + 2, to += *length) {
        *length = strtoul(at, NULL, 16);
        line = find(at, last - at, "\r\n");
        if (!*length) break;
        memmove(to, line, *length);
    }
    *length = to - body;
    return line + 2 - body;
}

/* Answers the first request in the buffer, if it is whole; returns its length. */
static size_t serve_one(int fd) {
    struct conn *c = &conns[fd];
    char *end = find(c->in, c->in_len, "\r\n\r\n");
    if (!end) return 0;
    size_t head = end - c->in, length = 0, taken = 0;
    for (char *line = c->in; line < end; line = find(line, end - line, "\r\n"))
        if (!strncasecmp(line, "content-length:", 15)) length = strtoul(line + 15, NULL, 10);
    if (memmem(c->in, head, "\r\ntransfer-encoding: chunked", 28)) {
        if (!(taken = join_chunks(end, c->in_len - head, &length))) return 0;
    } else if (c->in_len < head + (taken = length)) return 0;
    if (!strncmp(c->in, "POST /v1/chat/completions ", 26)) generate(fd, end, length, 1);
    else if (!strncmp(c->in, "POST /v1/completions ", 21)) generate(fd, end, length, 0);
    else if (!strncmp(c->in, "GET /v1/models ", 15)) answer(fd, "200 OK", "application/json", MODELS);
    else if (!strncmp(c->in, "GET /health", 11)) answer(fd, "200 OK", "application/json", "{}");
    else answer(fd, "404 Not Found", "application/json", "{\"error\":{\"message\":\"not found\"}}");
    return head + taken;
}

static void receive(int fd) {
    struct conn *c = &conns[fd];
    for (;;) {
        if (c->in_cap - c->in_len < 65536) {
            c->in_cap = 2 * c->in_cap + 131072;
            if (c->in_cap > 4 * LONGEST_REQUEST || !(c->in = realloc(c->in, c->in_cap))) fail("long");
        }
        ssize_t got = recv(fd, c->in + c->in_len, c->in_cap - c->in_len - 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            close_conn(fd);
            return;
        }
        if (got < 0) break;
        c->in_len += got;
        c->in[c->in_len] = 0;
    }
    size_t done;
    while (!c->chunks_left && c->in_len && (done = serve_one(fd))) {
        memmove(c->in, c->in + done, c->in_len - done + 1);
        c->in_len -= done;
    }
}

static void accept_all(int listener) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MOST_FDS) fail("too many connections");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        conns[fd].open = 1;
        if (fd > highest_fd) highest_fd = fd;
        watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    }
}

static void tick(int timer) {
    uint64_t times;
    char text[1024];
    if (read(timer, &times, sizeof times) < 0) return;
    for (int fd = 0; fd <= highest_fd; fd++)
        if (conns[fd].open && conns[fd].chunks_left) send_chunk(fd, text, 0, sizeof text);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: engine SERVERS TICK_US\n"), 2;
    epoll_fd = epoll_create1(0);
    for (int i = atoi(argv[1]); i > 0; i--) {
        struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof where;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (bind(fd, (void *)&where, size) || listen(fd, 1024)) fail("bind");
        getsockname(fd, (void *)&where, &size);
        is_listener[fd] = 1;
        watch(fd, EPOLLIN, EPOLL_CTL_ADD);
        printf("%d%c", ntohs(where.sin_port), i > 1 ? ' ' : '\n');
    }
    fflush(stdout);
    long tick_ns = 1000 * atol(argv[2]);
    struct timespec step = {tick_ns / 1000000000, tick_ns % 1000000000};
    struct itimerspec every = {step, step};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    timerfd_settime(timer, 0, &every, NULL);
    watch(timer, EPOLLIN, EPOLL_CTL_ADD);
    struct epoll_event ready[256];
    for (;;) {
        int count = epoll_wait(epoll_fd, ready, 256, -1);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == timer) tick(fd);
            else if (is_listener[fd]) accept_all(fd);
            else {
                if (ready[i].events & EPOLLOUT && conns[fd].out_len) flush(fd);
                if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(fd);
            }
        }
    }
}
