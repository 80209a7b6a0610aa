"""`dp report` and its page: one file, no network, safe from what names hold; and its server."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run_folders import make_run, make_scaling, write_curve

from lockstep.cli.main import main
from lockstep.report.folder import RunFolder
from lockstep.report.serve import LiveServer


@pytest.mark.parametrize("make", [make_run, make_scaling])
def test_the_page_is_one_small_file_that_asks_nobody(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run")
    assert main(["report", "run"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert not re.findall(r"@import|url\(", page)
    assert "connect-src 'none'" in page
    assert "The MIT License (MIT)" in page
    assert len(page) < 200_000


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    make_run(tmp_path / "</title><script>1", system="</script><b>@@JS@@")
    assert main(["report", str(tmp_path / "<" / "title><script>1"), "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text()
    assert page.count("<script") == page.count("</script>") == 3
    assert (
        json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["systems"][0]["rows"][0][0] == "</script><b>@@JS@@"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no such folder"),
        (["empty"], "there is nothing of a run in this folder"),
        (["run", "-o", "run/out.json/a.html"], "cannot be written"),
        (["broken"], "expected a row of numbers"),
        (["run", "--serve", "--port", "99999"], "cannot serve at"),
        (["run", "--serve", "--host", "203.0.113.1", "--port", "0"], "cannot serve at"),
    ],
)
def test_mistakes(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "lcurve.out").write_text("pancakes\n")
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_port_in_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["report", str(tmp_path), "--serve", "--port", port]) == 2
    assert "name another port" in capsys.readouterr().err


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    run = make_run(tmp_path / "run")
    (tmp_path / "secret.txt").write_text("secret")
    (run / "notes.txt").write_text("private notes")
    with LiveServer(RunFolder(run), "127.0.0.1", 0) as live:
        thread = threading.Thread(target=live.serve_forever, args=(0.05,))
        thread.start()
        yield live
        live.shutdown()
        thread.join()


def ask(
    server: LiveServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_a_client_that_leaves_early_is_no_error(server: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(server.server_address[:2]) as client:
            # Closing with a reset instead of a goodbye: the answer cannot be delivered.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server, "/")[0].status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_only_this_machine_can_reach_the_server(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_and_its_data_are_served(server: LiveServer) -> None:
    answer, page = ask(server, "/")
    assert answer.status == 200
    assert "connect-src 'self'" in page
    answer, text = ask(server, "/data.json")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert json.loads(text)["live"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/train.log",
        "/notes.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "//secret.txt",
        "/data.json/../notes.txt",
        "/..",
    ],
)
def test_no_file_is_served(server: LiveServer, path: str) -> None:
    answer, text = ask(server, path)
    assert answer.status == 404
    assert "secret" not in text
    assert "notes" not in text


def test_other_methods_are_refused(server: LiveServer) -> None:
    assert {ask(server, "/", method)[0].status for method in ("POST", "PUT", "DELETE")} == {501}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8265", "127.0.0.1.evil.example", "", "[::"])
def test_requests_under_other_names_are_refused(server: LiveServer, host: str) -> None:
    answer, text = ask(server, "/data.json", headers={"Host": host})
    assert answer.status == 403
    assert "curves" not in text


def test_unchanged_data_are_not_sent_again(server: LiveServer) -> None:
    tag = ask(server, "/data.json")[0].headers["ETag"]
    assert ask(server, "/data.json", headers={"If-None-Match": tag})[0].status == 304
    write_curve(server.folder.root, [1, 10, 20])
    answer, text = ask(server, "/data.json", headers={"If-None-Match": tag})
    assert answer.status == 200
    assert json.loads(text)["curves"]["step"] == [1, 10, 20]


def test_a_file_that_cannot_be_read_now_is_told(server: LiveServer) -> None:
    (server.folder.root / "lcurve.out").write_text("# step a lr\n1 x\n")
    assert ask(server, "/data.json")[0].status == 503
