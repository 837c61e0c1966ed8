"""Files of consumers' caches: kept once, within a total, the oldest keys given up."""

from __future__ import annotations

import pytest

from warpplan.planner.errors import InvalidInput
from warpplan.service.feeds.remote_artifacts import packed, unpacked
from warpplan.service.store import artifact_store
from warpplan.service.store.answer_store import Store
from warpplan.service.store.artifact_store import ArtifactKey, Artifacts, UnknownArtifact, artifact

PLACE = ArtifactKey("triton", "A" * 52)


def test_the_oldest_keys_are_given_up(store: Store) -> None:
    size = len(packed(b"data"))
    artifacts = Artifacts(store.database, max_total_bytes=5 * size)
    places = [ArtifactKey("triton", letter * 52) for letter in "CAB"]
    for place in places:
        for name in ("k.json", "k.cubin"):
            artifacts.put(place, artifact(name, b"data", packed(b"data")))
    assert artifacts.keys("triton", 10) == ("B" * 52, "A" * 52), "by age, not by name; a key is whole or gone"
    assert [len(artifacts.get(place, ["k.json", "k.cubin"])) for place in places] == [0, 2, 2]
    assert artifacts.keys("triton", 1) == ("B" * 52,)


def test_one_that_alone_is_too_large_is_refused(store: Store) -> None:
    artifacts = Artifacts(store.database, max_total_bytes=4)
    with pytest.raises(InvalidInput, match="at most 4"):
        artifacts.put(PLACE, artifact("k", b"data", packed(b"data")))


def test_an_answer_has_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = Artifacts(store.database)
    for name in "ab":
        artifacts.put(PLACE, artifact(name, b"data", packed(b"data")))
    monkeypatch.setattr(artifact_store, "MAX_ANSWER_BYTES", 2 * len(packed(b"data")) - 1)
    assert list(artifacts.get(PLACE, ["a"])) == ["a"]
    with pytest.raises(InvalidInput, match="ask for fewer"):
        artifacts.get(PLACE, ["a", "b"])


def test_scopes_are_apart_and_forgotten_together(store: Store) -> None:
    artifacts = Artifacts(store.database)
    scopes = [ArtifactKey("triton", PLACE.key, scope) for scope in ("", "NVIDIA H200", "NVIDIA H100")]
    for number, place in enumerate(scopes):
        data = bytes([number])
        assert artifacts.put(place, artifact("k", data, packed(data)))[1]
    assert [unpacked(artifacts.get(place, ["k"])["k"].body) for place in scopes] == [b"\0", b"\1", b"\2"]
    artifacts.forget("triton", PLACE.key)
    assert not any(artifacts.get(place, ["k"]) for place in scopes)
    with pytest.raises(UnknownArtifact):
        artifacts.forget("triton", PLACE.key)


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096])
def test_packing(data: bytes) -> None:
    assert unpacked(packed(data)) == data


@pytest.mark.parametrize("text", ["", "?", packed(b"x" * 100)[:-8], packed(b"x" * 1001)])
def test_what_is_no_packing_or_too_long(text: str) -> None:
    with pytest.raises(ValueError):
        unpacked(text, most=1000)
