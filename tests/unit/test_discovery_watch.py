"""The list-and-watch protocol as a reducer, and what objects say about engines."""

from random import Random
from typing import Any

import pytest

from foretell.discovery import ProtocolError, Refused, Watch, of_endpoint_slice, of_pod
from foretell.discovery.endpoints import EngineEndpoint, FoundEndpoints


def pod(name: str, version: int, **changes: Any) -> dict[str, Any]:
    ready = "True" if changes.get("ready", True) else "False"
    ports = changes.get("ports", {"http": 8000, "grpc": 50051})
    metadata: dict[str, Any] = {"name": name, "resourceVersion": str(version)}
    if models := changes.get("models"):
        metadata["annotations"] = {"foretell/models": models}
    if changes.get("terminating"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {
            "containers": [{"ports": [{"name": n, "containerPort": p} for n, p in ports.items()]}]
        },
        "status": {
            "podIP": changes.get("address", "10.0.0.1"),
            "phase": changes.get("phase", "Running"),
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def page(version: int, *items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def event(kind: str, found: Any) -> dict[str, Any]:
    return {"type": kind, "object": found}


def watching(*items: Any, version: int = 10) -> Watch:
    watch = Watch("app=engine", of_pod)
    watch.page(page(version, *items))
    return watch


def names(watch: Watch) -> list[str]:
    return [each.name for each in watch.endpoints()]


def test_it_lists_in_pages_and_then_watches_from_there() -> None:
    watch = Watch("app=engine", of_pod)
    assert not watch.ask().watches
    assert watch.ask().parameters["labelSelector"] == "app=engine"
    assert not watch.page(page(10, pod("a", 1), more="next"))
    assert watch.ask().parameters["continue"] == "next"
    assert not watch.endpoints(), "half a list is none"
    assert watch.page(page(10, pod("b", 2)))
    assert names(watch) == ["a", "b"]
    asked = watch.ask()
    assert asked.watches
    assert asked.parameters["resourceVersion"] == "10"
    assert asked.parameters["allowWatchBookmarks"] == "true"


def test_events_add_change_and_remove() -> None:
    watch = watching()
    assert watch.event(event("ADDED", pod("a", 11)))
    assert not watch.event(event("MODIFIED", pod("a", 12))), "nothing that matters"
    assert watch.event(event("MODIFIED", pod("a", 13, address="10.0.0.9")))
    assert watch.endpoints()[0].url == "http://10.0.0.9:8000"
    assert watch.event(event("DELETED", pod("a", 14)))
    assert not watch.endpoints()
    assert watch.ask().parameters["resourceVersion"] == "14"


def test_a_bookmark_moves_on_and_changes_nothing() -> None:
    watch = watching(pod("a", 1))
    assert not watch.event(event("BOOKMARK", {"metadata": {"resourceVersion": "99"}}))
    assert watch.ask().parameters["resourceVersion"] == "99"
    assert names(watch) == ["a"]


def test_what_is_told_again_brings_nothing_back() -> None:
    watch = watching()
    watch.event(event("ADDED", pod("a", 11)))
    watch.event(event("DELETED", pod("a", 12)))
    assert not watch.event(event("ADDED", pod("a", 11)))
    assert not watch.endpoints()


def test_410_lists_again_and_keeps_what_is_known_until_then() -> None:
    watch = watching(pod("a", 1), pod("b", 2))
    with pytest.raises(Refused) as refused:
        watch.event(event("ERROR", {"code": 410}))
    watch.failed(refused.value)
    assert not watch.ask().watches
    assert names(watch) == ["a", "b"]
    watch.page(page(20, pod("b", 2)))
    assert names(watch) == ["b"]


def test_a_list_that_breaks_off_between_pages_starts_anew() -> None:
    watch = Watch("x=y", of_pod)
    watch.page(page(10, pod("a", 1), more="next"))
    watch.failed(Refused(410))
    assert "continue" not in watch.ask().parameters
    watch.page(page(11, pod("b", 2)))
    assert names(watch) == ["b"]


def test_a_cut_goes_on_from_the_last_event_and_many_list_again() -> None:
    watch = watching()
    watch.event(event("ADDED", pod("a", 11)))
    watch.failed(OSError())
    assert watch.ask().parameters["resourceVersion"] == "11"
    for _ in range(5):
        watch.failed(OSError())
    assert not watch.ask().watches
    assert names(watch) == ["a"]


def test_pauses_grow_and_end_with_success() -> None:
    watch = watching()
    pauses = []
    for _ in range(12):
        watch.failed(OSError())
        pauses.append(watch.pause_s(0.5))
    assert pauses == sorted(pauses)
    assert pauses[0] < 1 < pauses[-1] <= 30
    assert watch.pause_s(0.0) < watch.pause_s(0.9)
    watch.page(page(30))
    assert watch.pause_s(0.5) == 0
    watch.ended(60.0)
    assert watch.pause_s(0.5) == 0
    watch.ended(0.0)
    assert watch.pause_s(0.5) > 0, "a server that ends every watch at once is not asked in a loop"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "text",
        {},
        {"type": "ADDED"},
        {"type": "ADDED", "object": {}},
        {"type": "ADDED", "object": {"metadata": {"resourceVersion": "99"}}},
        {"type": "RENAMED", "object": pod("a", 99)},
        {"type": "BOOKMARK", "object": {"metadata": {}}},
        {"type": "ERROR", "object": {}},
    ],
)
def test_what_is_no_event_is_an_error_and_changes_nothing(wrong: Any) -> None:
    watch = watching(pod("a", 1))
    with pytest.raises(ProtocolError):
        watch.event(wrong)
    assert names(watch) == ["a"]


@pytest.mark.parametrize(
    "wrong", [None, {}, {"items": []}, {"metadata": {"resourceVersion": "1"}}, page(1, 5)]
)
def test_what_is_no_page_is_an_error_and_changes_nothing(wrong: Any) -> None:
    watch = watching(pod("a", 1))
    watch.list_again()
    with pytest.raises(ProtocolError):
        watch.page(wrong)
    assert names(watch) == ["a"]


def test_a_pod_that_was_ready_drains_and_one_that_never_was_is_not_told() -> None:
    watch = watching(pod("new", 1, ready=False), pod("old", 2), pod("going", 3))
    assert names(watch) == ["going", "old"]
    assert watch.event(event("MODIFIED", pod("old", 11, ready=False)))
    assert watch.event(event("MODIFIED", pod("going", 12, terminating=True)))
    assert [each.draining for each in watch.endpoints()] == [True, True]
    assert watch.event(event("MODIFIED", pod("old", 13)))
    assert watch.event(event("MODIFIED", pod("new", 14)))
    assert {e.name: e.draining for e in watch.endpoints()} == {
        "new": False,
        "old": False,
        "going": True,
    }
    # A pod of that name at another address is not the one that has served.
    assert watch.event(event("MODIFIED", pod("old", 15, ready=False, address="10.0.0.7")))
    assert names(watch) == ["going", "new"]
    watch.list_again()
    watch.page(page(20, pod("going", 12, terminating=True), pod("new", 14, phase="Failed")))
    assert names(watch) == ["going"]
    assert watch.endpoints()[0].draining


def test_ports_have_names_and_ranks_have_ports() -> None:
    ports = {"http-0": 8000, "grpc-0": 50051, "http-1": 8001, "grpc-1": 50052, "metrics": 9100}
    found = of_pod(
        pod("a", 1, ports=ports, address="fd00::1", models="m, sql-lora"), FoundEndpoints()
    )
    assert found.models == ("m", "sql-lora")
    assert found.endpoints == (
        EngineEndpoint("a-rank0", "http://[fd00::1]:8000", "[fd00::1]:50051", model="m"),
        EngineEndpoint("a-rank1", "http://[fd00::1]:8001", "[fd00::1]:50052", model="m"),
    )
    assert of_pod(pod("a", 1, ports={}), FoundEndpoints()).endpoints == (
        EngineEndpoint("a", "http://10.0.0.1:8000"),
    )
    assert not of_pod(pod("a", 1, ports={"other": 1}), FoundEndpoints()).endpoints
    assert not of_pod(
        {"metadata": {"name": "a"}, "spec": None, "status": []}, FoundEndpoints()
    ).endpoints


def test_pods_of_stateful_sets_have_names() -> None:
    found = pod("set-0", 1)
    found["spec"] |= {"hostname": "set-0", "subdomain": "set"}
    (endpoint,) = of_pod(found, FoundEndpoints()).endpoints
    assert endpoint.predictor == "10.0.0.1:50051"
    assert endpoint.predictor_by_name == "set-0.set:50051"


def test_models_of_engines_that_are_not_ready_are_told() -> None:
    watch = watching(pod("a", 1, ready=False, models="m"), pod("b", 2, models="n"))
    assert watch.models() == ("m", "n")


def endpoint_slice(name: str, *endpoints: tuple[str, str, dict[str, bool]]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": [address], "conditions": conditions, "targetRef": {"name": target}}
            for target, address, conditions in endpoints
        ],
    }


def test_slices_tell_the_same_and_one_endpoint_counts_once() -> None:
    watch = Watch("x=y", of_endpoint_slice)
    watch.page(
        page(
            1,
            endpoint_slice("s1", ("a", "10.0.0.1", {"ready": True}), ("b", "10.0.0.2", {})),
            endpoint_slice("s2", ("c", "10.0.0.3", {"ready": False})),
        )
    )
    assert names(watch) == ["a", "b"]
    moved = endpoint_slice("s2", ("a", "10.0.0.1", {"ready": True}), ("c", "10.0.0.3", {}))
    moved["metadata"]["resourceVersion"] = "2"
    watch.event(event("MODIFIED", moved))
    going = endpoint_slice(
        "s1", ("b", "10.0.0.2", {"ready": False, "serving": True, "terminating": True})
    )
    going["metadata"]["resourceVersion"] = "3"
    watch.event(event("MODIFIED", going))
    assert {e.name: e.draining for e in watch.endpoints()} == {"a": False, "b": True, "c": False}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_ends_with_what_there_is(seed: int) -> None:
    """A history of changes, delivered with repetitions, cuts, refusals and lists at any moment."""
    random = Random(seed)
    there: dict[str, dict[str, Any]] = {}
    history: list[tuple[int, dict[str, Any]]] = []
    version, watch = 1, Watch("x=y", of_pod)
    for _ in range(300):
        version += 1
        name = f"pod-{random.randrange(12)}"
        if name in there and random.random() < 0.4:
            history.append((version, event("DELETED", {**pod(name, version)})))
            del there[name]
        else:
            kind = "MODIFIED" if name in there else "ADDED"
            there[name] = pod(name, version, address=f"10.0.0.{random.randrange(250)}")
            history.append((version, event(kind, there[name])))
        if random.random() < 0.1:
            history = history[-5:]
        if random.random() < 0.3:
            _tell(watch, there, history, version, random)
    while _tell(watch, there, history, version, random):
        pass
    assert {e.name: e.url for e in watch.endpoints()} == {
        name: f"http://{each['status']['podIP']}:8000" for name, each in there.items()
    }


def _tell(
    watch: Watch, there: dict[str, Any], history: list[Any], version: int, random: Random
) -> bool:
    """Deliver one server response, cut off anywhere; return whether there is more to deliver."""
    asked = watch.ask()
    if not asked.watches:
        if random.random() < 0.3:
            watch.failed(OSError())
            return True
        watch.page(page(version, *there.values()))
        return True
    since = int(asked.parameters["resourceVersion"])
    if history and since < history[0][0] - 1 and since < version:
        watch.failed(Refused(410))
        return True
    again = 3 if random.random() < 0.2 else 0  # a faulty server begins too early
    missing = [told for at, told in history if at > since - again]
    for told in missing[: random.randrange(len(missing) + 1)]:
        watch.event(told)
    if random.random() < 0.5:
        watch.failed(OSError())
    return (
        int(watch.ask().parameters.get("resourceVersion", 0)) < version or not watch.ask().watches
    )
