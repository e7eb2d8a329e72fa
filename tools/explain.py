"""Shows why a request was placed where it was, as its scheduler replica explains it."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.services.scheduler.placing.attempt import MOST_TRACES
from foretell.tools.view.replicas import addresses_of, each_replica, fetch


class CannotExplain(Exception):
    """There is no explanation; the text says why, and what the user can do."""


def find(request_id: str, urls: Sequence[str], api_key: str) -> dict[str, Any]:
    """The explanation of the replica that placed the request; CannotExplain if there is none."""
    asked: set[str] = set()
    refused = ""
    for url in urls:
        try:
            for name, explained in each_replica(partial(_ask, url, request_id, api_key)):
                if explained is not None:
                    return explained
                asked.add(name)
        except OSError as error:
            refused = refused or f"no scheduler answers at {url}: {error}"
    if not asked:
        raise CannotExplain(refused)
    raise CannotExplain(
        f"no replica remembers {request_id!r} ({', '.join(sorted(asked))} asked): each keeps its "
        f"latest {MOST_TRACES:,} requests; is the id that of the answer's header x-request-id?"
    )


def _ask(url: str, request_id: str, api_key: str) -> tuple[str, tuple[str, dict[str, Any] | None]]:
    """The name of the replica that answers, then its name and explanation; None: not remembered."""
    code, body = fetch(f"{url}/explain/{quote(request_id)}", api_key)
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise CannotExplain(f"{url} is no scheduler of Foretell") from error
    explained = dict(answer) if code == 200 else None
    name = str(answer["replica_id"]) if explained is not None else _check(code, answer, url)
    return name, (name, explained)


def _check(code: int, answer: Any, url: str) -> str:
    """The name of a replica that does not remember the request; CannotExplain for other errors."""
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    if code == 404 and error.get("code") == "request_not_remembered":
        return str(error["message"]).split(" ", 1)[0]
    if code == 401:
        raise CannotExplain(f"{url} wants a key: give one with --api-key")
    if code == 403:
        raise CannotExplain(f"{url}: {error.get('message')}")
    raise CannotExplain(f"{url} answers {code}: is it a scheduler of Foretell?")


def show_explanation(
    request_id: str, urls: Sequence[str], cluster_file: str, api_key: str, *, as_json: bool
) -> None:
    """Print the explanation; end the process with code 1 if there is none."""
    try:
        urls = addresses_of(cluster_file) if cluster_file else urls
        explained = find(request_id, [url.rstrip("/") for url in urls], api_key)
    except (CannotExplain, ValueError) as error:
        raise SystemExit(f"foretell explain: {error}") from error
    if as_json:
        sys.stdout.write(json.dumps(explained, indent=2) + "\n")
    else:
        Console().print(render(explained))


def render(explained: dict[str, Any]) -> RenderableType:
    """Render an answer of `GET /explain/ID` for a terminal."""
    model, replica = explained["model_name"] or "the model", explained["replica_id"]
    title = f"{explained['request_id']} to {model}, by {replica}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    for attempt in explained["attempts"]:
        parts += [Text(), *_attempt(attempt)]
    return Group(*parts)


def _attempt(attempt: dict[str, Any]) -> list[RenderableType]:
    emulated = ", which is emulated" if attempt["emulated"] else ""
    head = f"Attempt {attempt['attempt']} went to {attempt['instance_id']}{emulated}: "
    head += f"{attempt['because']}."
    found: list[RenderableType] = [Text(head), _candidates(attempt)]
    found += [Text(line) for line in _approximated(attempt["candidates"])]
    chosen = next(one for one in attempt["candidates"] if one["chosen"])
    found.append(Text(_happened(attempt, chosen)))
    if attempt["floor"]:
        floor = attempt["floor"]
        found.append(
            Text(
                f"An idle engine would have needed {_s(floor['ttft_s'])} to the first token and "
                f"{_s(floor['e2e_s'])} in all, for {floor['output_tokens']:.0f} tokens."
            )
        )
    return found


def _approximated(candidates: Sequence[dict[str, Any]]) -> list[str]:
    """Lines on what predictions do not model; engines with the same gaps share a line."""
    features: dict[str, list[str]] = {}
    for one in candidates:
        found = ", ".join((one["predicted"] or {}).get("approximations", ()))
        features.setdefault(found, []).append(one["instance_id"])
    return [f"Not modelled of {', '.join(e)}: {found}." for found, e in features.items() if found]


def _happened(attempt: dict[str, Any], chosen: dict[str, Any]) -> str:
    happened, predicted = attempt["happened"], chosen["predicted"] or {}
    if happened is None:
        return "It is in progress."
    ended = "It ended" if happened["finished"] else "It broke off"
    if not happened["finished"] and not happened["broken"]:
        ended = "It did not end here"
    text = f"{ended} with status {happened['status'] or 'none'}"
    if happened["e2e_s"]:
        first, last = _s(happened["ttft_s"]), _s(happened["e2e_s"])
        text += f": first token after {first} (predicted {_s(predicted.get('ttft_s'))}), "
        text += f"last after {last} (predicted {_s(predicted.get('e2e_s'))}), "
        expected = attempt["expected"]["output_tokens"]
        text += f"{happened['output_tokens'] or '?'} tokens (expected {expected:.0f})"
    return f"{text}."


_COLUMNS = ("instance", "queue", "KV", "TTFT", "e2e", "score", "wait", "others", "hindsight")


def _candidates(attempt: dict[str, Any]) -> Table:
    """A table that fits 80 columns."""
    hindsight = any(one["hindsight"] for one in attempt["candidates"])
    table = Table(box=None, pad_edge=False, caption_justify="left")
    table.caption = "Seconds. Queue: running + waiting. Wait: its own; others: what it costs them."
    if attempt["measure"]:
        table.caption += f" Score: {attempt['measure']}, the least is chosen."
    if hindsight:
        table.caption += " Hindsight: e2e with the true length of the answer."
    table.add_column(_COLUMNS[0], overflow="fold")
    for column in _COLUMNS[1:] if hindsight else _COLUMNS[1:-1]:
        table.add_column(column, justify="right")
    ordered = sorted(attempt["candidates"], key=lambda c: (not c["chosen"], _number(c["score"])))
    for one in ordered:
        row = _row(one)[: len(table.columns)]
        table.add_row(*row, style="bold" if one["chosen"] else None)
    return table


def _row(one: dict[str, Any]) -> list[str]:
    load, predicted, parts = one["load"] or {}, one["predicted"] or {}, one["parts"] or {}
    known = "" if one["score_known"] else "~"
    added = [parts.get(name) for name in ("added_ttft_s", "added_e2e_s")]
    again = one["hindsight"] or {}
    return [
        f"{'> ' if one['chosen'] else '  '}{one['instance_id']}",
        f"{load['running']} + {load['waiting'] + load['reserved']}" if load else "-",
        f"{100 * load['kv_used_ratio']:.0f}%" if load else "-",
        _figure(predicted.get("ttft_s")),
        _figure(predicted.get("e2e_s")),
        "-" if one["score"] is None else f"{known}{_figure(one['score'])}",
        _figure(parts.get("wait_s")),
        _figure(sum(part or 0.0 for part in added) if parts else None),
        _figure(again.get("e2e_s")),
    ]


def _figure(value: float | None) -> str:
    """Three decimals; None is unknown, or never."""
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> float:
    return float("inf") if value is None else value


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{_figure(seconds)} s"
