from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from warpplan.kernels.triton_compat import release, require_supported


@pytest.mark.parametrize(
    ("version", "expected"), [("3.6.0", (3, 6)), ("3.10.1+git", (3, 10)), ("main", (0, 0)), ("3.x", (0, 0))]
)
def test_release(version, expected):
    assert release(version) == expected


@pytest.mark.parametrize("version", ["3.6.0", "3.9.0", "3.8.1"])
def test_supported(version):
    require_supported(version)


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0", "unknown"])
def test_other_releases_are_refused_with_the_way_out(version):
    with pytest.raises(ImportError, match=r"need 3\.6 to 3\.9; install one"):
        require_supported(version)
