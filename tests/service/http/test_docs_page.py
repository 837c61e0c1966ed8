"""The API's page needs no network but this server."""

from __future__ import annotations

import re
import subprocess
from importlib import resources
from pathlib import Path
from shutil import which

import httpx
import pytest

from warpplan.kernels import registry


def test_everything_the_page_names_is_served_here(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", page.text) == []
    assert "default-src 'none'" in page.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    types = {path: http.get(path).headers["content-type"].partition(";")[0] for path in named}
    assert types == {
        "/docs/assets/swagger-ui.css": "text/css",
        "/docs/assets/favicon-32x32.png": "image/png",
        "/docs/assets/swagger-ui-bundle.js": "text/javascript",
    }


def test_the_licence_ships_with_the_assets() -> None:
    folder = resources.files("warpplan.service.http") / "static" / "swagger_ui"
    assert "Apache License" in (folder / "LICENSE").read_text()


@pytest.mark.slow
@pytest.mark.skipif(which("chromium") is None, reason="chromium is not installed")
def test_a_browser_without_a_network_shows_it(url: str, tmp_path: Path) -> None:
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=20000", "--dump-dom",
        f"{url}/docs",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert "opblock-summary-path" in shown
    whole = shown.replace("&ZeroWidthSpace;", "").replace("\u200b", "").replace("<wbr>", "")
    assert [name for name in registry.names() if f"/v1/configs/{name}" not in whole] == []
