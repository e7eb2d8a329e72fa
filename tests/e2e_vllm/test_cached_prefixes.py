"""A prompt that shares a prefix with an earlier one goes to the engine that has it cached.

The request log shows how much was predicted to be cached and how much was. These tests run before
those that send bursts, after which predictors expect more bursts for a while.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx
import pytest

from foretell import wire
from foretell.model import LengthEstimate, RequestSpec
from foretell.services.process.frames import FRAMES_VERSION, frames_address
from foretell.v1 import predictor_pb2 as pb
from tests.e2e.cluster import Cluster
from tests.e2e_vllm.vllm_engines import ENGINES, model_of, recorded

CHATS, TURNS = 4, 4
WORDS = ["the", "model", "server", "request", "every", "engine", "answers", "waits", "for", "it"]
BLOCK_TOKENS = 128  # vLLM's block size on a CPU
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]

Chat = list[dict[str, str]]
SNAPSHOT_S = 1.0
"""Time after which every scheduler has certainly got what others told a predictor."""


def text_of(draws: Random, words: int) -> str:
    return " ".join(draws.choices(WORDS, k=words))


def calibrate(running: Cluster, model: str) -> None:
    """Let both predictors learn step times of prefills and decodes, before any placement."""
    draws = Random(1)
    for index in range(ENGINES):
        url = running.component(f"engine-{index}")["address"]
        for words in (20, 900, 100, 500, 1100, 300, 700):
            body: dict[str, Any] = {"model": model, "prompt": text_of(draws, words)}
            body |= {"max_tokens": 24, "ignore_eos": True}
            httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def ask(client: httpx.Client, model: str, name: str, chat: Chat, **more: Any) -> str:
    """The instance that answered; the answer is appended to `chat`."""
    answer = client.post(
        "/v1/chat/completions",
        json={"model": model, "messages": chat, "max_tokens": 4, "temperature": 0, **more},
        headers={"x-request-id": name},
    )
    chat.append(answer.raise_for_status().json()["choices"][0]["message"])
    return answer.headers["x-foretell-instance"]


@contextmanager
def reserved(running: Cluster, instance: str) -> Iterator[None]:
    """Hold large reservations on an engine, so that the scheduler chooses the other one."""
    address = running.component(f"{instance}.predictor")["address"]
    names = [f"never-{index}" for index in range(6)]
    secret = (running.run_dir / "secret").read_bytes().strip()
    host, _, port = frames_address(address).rpartition(":")
    is_unix = address.startswith("unix:")
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as stream:
        stream.connect(port if is_unix else (host, int(port)))
        told = [pb.Hello(version=FRAMES_VERSION, secret=secret)]
        for name in names:
            spec = RequestSpec(name, 1500, 0, LengthEstimate(10.0))
            told.append(pb.Notice(reserved=wire.request_to_proto(spec)))
        _send(stream, told)
        time.sleep(SNAPSHOT_S)
        yield
        _send(stream, [pb.Notice(ended=pb.RequestEnded(request_id=name)) for name in names])
        time.sleep(SNAPSHOT_S)


def _send(stream: socket.socket, messages: list[Any]) -> None:
    for message in messages:
        payload = message.SerializeToString()
        stream.sendall(len(payload).to_bytes(4, "little") + payload)


def talk(running: Cluster, model: str, chats: list[Chat]) -> list[list[str]]:
    """The instance that answered each turn, by chat; each engine gets half of the first turns."""
    draws, went = Random(2), []
    with httpx.Client(base_url=running.endpoint, timeout=120) as client:
        for half, instance in enumerate(("engine-1", "engine-0")):
            with reserved(running, instance):
                for i in range(half * CHATS // 2, (half + 1) * CHATS // 2):
                    went.append([ask(client, model, f"chat-{i}-0", chats[i])])
        for turn in range(1, TURNS):
            for i, chat in enumerate(chats):
                chat.append({"role": "user", "content": text_of(draws, 20)})
                went[i].append(ask(client, model, f"chat-{i}-{turn}", chat))
    return went


def test_later_turns_go_where_the_earlier_ones_are_cached(running: Cluster) -> None:
    model, draws = model_of(running), Random(3)
    calibrate(running, model)
    chats = [[{"role": "user", "content": text_of(draws, 1000)}] for _ in range(CHATS)]
    went = talk(running, model, chats)
    assert [instances[0] for instances in went] == ["engine-0"] * 2 + ["engine-1"] * 2
    for i, instances in enumerate(went):
        lines = recorded(running, [f"chat-{i}-{turn}" for turn in range(TURNS)])
        for turn, line in enumerate(lines):
            if instances[turn] not in instances[:turn]:
                assert max(line["predicted_cached_tokens"], line["cached_tokens"]) == 0, line
                continue
            assert line["cached_tokens"] >= line["prompt_tokens"] - 2 * BLOCK_TOKENS, line
            error = line["predicted_cached_tokens"] - line["cached_tokens"]
            assert abs(error) <= 2 * BLOCK_TOKENS, line
    # Random placement would move three of four; other load on the machine may move one.
    assert sum(len(set(instances)) > 1 for instances in went) <= 1, went


def single_tokens(running: Cluster, model: str) -> list[int]:
    """The words of one token each: as text in the next prompt they are the same tokens again."""
    url, found = running.component("engine-0")["address"], []
    for word in WORDS:
        body = {"model": model, "prompt": f" {word}", "add_special_tokens": False}
        tokens = httpx.post(f"{url}/tokenize", json=body).raise_for_status().json()["tokens"]
        found += tokens if len(tokens) == 1 else []
    return found


def test_a_turn_finds_the_answer_before_it(running: Cluster) -> None:
    model, draws = model_of(running), Random(5)
    words = {"allowed_token_ids": single_tokens(running, model)}
    chat: Chat = []
    with httpx.Client(base_url=running.endpoint, timeout=120) as client:
        for turn in range(TURNS):
            chat.append({"role": "user", "content": text_of(draws, 40)})
            name = f"answered-{turn}"
            # The engines' times of 300 steps may differ by more than this prefix saves.
            with reserved(running, "engine-1"):
                went = ask(client, model, name, chat, max_tokens=300, ignore_eos=True, **words)
            assert went == "engine-0"
    lines = recorded(running, [f"answered-{turn}" for turn in range(TURNS)])
    for line in lines[1:]:
        # All but the new question is cached; without the answer it would be 300 tokens less.
        assert line["cached_tokens"] >= line["prompt_tokens"] - 2 * BLOCK_TOKENS, line
        error = line["predicted_cached_tokens"] - line["cached_tokens"]
        assert abs(error) <= BLOCK_TOKENS, line
