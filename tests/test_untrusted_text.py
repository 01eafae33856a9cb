"""Text of users stays text: in pages that a browser opens, Markdown, spreadsheets, terminals."""

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import browser
from synthesizer_attention.bench import measure
from synthesizer_attention.bench.page import write as write_bench
from synthesizer_attention.bench.plan import Plan, Result
from synthesizer_attention.cli import main
from synthesizer_attention.errors import fenced, plain, printable
from synthesizer_attention.report.page import Figures, Plot, Section, Table, page
from synthesizer_attention.report.tables import no_formula
from synthesizer_attention.report.write import write_report
from synthesizer_attention.run.progress import Lines
from synthesizer_attention.study.live import RowStatus, StatusLines
from test_report import make_study
from tiny import environment

HOSTILE = (
    "<script>window.hit=1</script>\"'><img src=x onerror='window.hit=1'>"
    '<svg onload=window.hit=1><a href="javascript:window.hit=1">x</a>'
    "<style>body{display:none}</style></title></pre></table><base href=//evil.example>"
    "<meta http-equiv=refresh content='0;url=http://evil.example'>"
    " \x1b]0;owned\x07\x1b[31m\x00\x08\u202egnp.exe\u2069 $\\frac{1}{0}$ [red]r[/red] \x9b2J"
)
ASK = (
    "String(window.hit)",
    "document.querySelectorAll('img, iframe, object, base, a:not([href^=\"#term-\"])').length",
    "document.scripts.length",
    "location.protocol",
    "getComputedStyle(document.body).display",
    "document.querySelectorAll('[onerror], [onload], [onclick]').length",
)
NOTHING_RAN = ["undefined", 0, 1, "file:", "block", 0]  # the one script is ours
ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

needs_browser = pytest.mark.skipif(browser.PATH is None, reason="no Chromium is installed")


def poison(home):
    """Hostile text wherever a report reads text."""
    path = home / "study.json"
    study = json.loads(path.read_text())
    for row in study["rows"]:
        if row["label"] != "dot":
            row["label"] += HOSTILE
        row["note"] = row["error"] = None
    study["rows"][1]["note"] = HOSTILE
    study["rows"][-1]["error"] = HOSTILE
    study["rows"][2]["trials"] = [{"changes": [f"train.lr={HOSTILE}", "t=1"], "validation": 1.0}]
    study |= {"command": HOSTILE, "recipe": HOSTILE, "chosen_for": HOSTILE}
    path.write_text(json.dumps(study))
    for file in home.rglob("result.json"):
        if "fixed_random" in str(file):
            continue
        result = json.loads(file.read_text())
        result["signatures"]["token_accuracy"] = result["commit"] = HOSTILE
        result["versions"] = {HOSTILE: HOSTILE}
        result["data"]["origin"] = result["device"] = result["recipe_hash"] = HOSTILE
        file.write_text(json.dumps(result))
    for file in home.rglob("samples.txt"):
        file.write_text(f"source: {HOSTILE}\nreference: {HOSTILE}\noutput: {HOSTILE}\n")
    for file in home.rglob("recipe.toml"):
        text = file.read_text().replace('name = "shift"', f"name = {json.dumps(HOSTILE)}")
        file.write_text(f"# {HOSTILE}".replace("\x00", "").replace("\x08", "") + "\n" + text)
    return home


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    home = poison(make_study(tmp_path_factory.mktemp("poisoned") / "shift"))
    write_report([home])
    return home


class Elements(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attributes):
        self.found |= {tag} | {name for name, _ in attributes}


def test_hostile_text_adds_no_element_and_no_control_character_to_the_page(poisoned, tmp_path):
    clean = make_study(tmp_path / "shift")
    write_report([clean])
    pages = [(home / "report.html").read_text() for home in (clean, poisoned)]
    found = []
    for text in pages:
        elements = Elements()
        elements.feed(text)
        found.append(elements.found)
    assert found[1] - found[0] <= {"small"}  # a row with a remark
    assert not found[1] & {"img", "base", "onerror", "onload"}
    assert pages[1].count("<script") == 1  # ours, which sorts tables
    assert pages[1].count("<a ") == pages[1].count('<a href="#term-')
    assert not ESCAPES.search(pages[1])
    assert "&lt;script&gt;window.hit=1&lt;/script&gt;" in pages[1]
    assert r"\x1b]0;owned" in pages[1]
    assert r"\u202egnp.exe" in pages[1]
    assert "frac{1}{0}$" in pages[1]


@needs_browser
def test_a_browser_runs_nothing_of_hostile_text(poisoned, tmp_path):
    file = poisoned / "report.html"
    seen = browser.look(file, tmp_path, width=1280, scheme="light", ask=ASK)
    assert seen.answers == NOTHING_RAN
    assert [url for url in seen.requests if not url.startswith("data:")] == [file.as_uri()]
    assert seen.complaints == []
    assert "<script>window.hit=1</script>" in seen.text  # shown as what it is


@pytest.fixture
def outside():
    """A server that a page must not reach: its address, and what was asked of it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *words): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@needs_browser
@pytest.mark.parametrize("policy", [True, False], ids=["with", "without"])
def test_the_policy_holds_where_markup_slipped_through(policy, outside, tmp_path):
    """Should an escape be forgotten, the page still runs and fetches nothing."""
    address, asked = outside
    body = (
        f"<script>window.hit=1</script><img src='{address}/img' onerror='window.hit=1'>"
        f"<style>body{{display:none}}</style><iframe src='{address}/frame'></iframe>"
        f"<link rel=stylesheet href='{address}/css'><object data='{address}/object'></object>"
        f"<svg><image href='{address}/image'/></svg><script src='{address}/script'></script>"
        f"<p style='background: url({address}/background)'>p</p>"
    )
    text = page("Title", [Section("s", [Figures([Plot(body, "")])])])
    file = tmp_path / "page.html"
    file.write_text(text if policy else re.sub(r"<meta http-equiv[^>]*>", "", text))
    seen = browser.look(file, tmp_path / "profile", width=900, scheme="dark", ask=(ASK[0], ASK[4]))
    if policy:
        assert seen.answers == ["undefined", "block"]
        assert asked == []
        assert "Content Security Policy" in json.dumps(seen.complaints)
    else:  # the attack is a live one
        assert seen.answers == ["1", "none"]
        assert {"/img", "/frame", "/css", "/script"} <= set(asked)


def test_the_policy_names_our_own_inline_code_by_its_hash():
    text = page("Title", [])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    assert text.index("Content-Security-Policy") < text.index("<style>")


@needs_browser
def test_the_page_of_a_benchmark_shows_its_command_as_text(tmp_path):
    machine = measure.machine(torch.device("cpu"), 1.0) | {"processor": HOSTILE}
    result = Result(Plan(), machine)
    file = write_bench(result, f"synthesizer bench {HOSTILE}", tmp_path / "bench")
    seen = browser.look(file, tmp_path / "profile", width=900, scheme="light", ask=ASK)
    assert seen.answers == NOTHING_RAN
    assert seen.complaints == []
    assert not ESCAPES.search(file.read_text())


def test_markdown_has_no_html_link_or_control_character_of_users(poisoned):
    text = (poisoned / "report.md").read_text()
    assert not ESCAPES.search(text)
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)<", outside)
    assert not re.search(r"(?<!\\)\[", outside)


def test_markdown_escapes_what_would_be_markup():
    assert plain("[x](javascript:a) <b> *i* `c` | a_b") == (
        r"\[x\](javascript:a) \<b\> \*i\* \`c\` \| a_b"
    )
    assert plain("a\nb") == r"a\\nb"  # shown as a\nb
    assert "https://" not in plain("https://evil.example www.evil.example")
    assert "www." not in plain("https://evil.example www.evil.example")
    assert Table(["a|b"], [["x\n<y>"]]).markdown() == "| a\\|b |\n| --- |\n| x; \\<y\\> |"
    assert fenced("a\n```\n<b>") == "````\na\n```\n<b>\n````"


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "\uff1d1", "a;=1", "a;\t=1", "a\n=HYPERLINK(1)"],
)
def test_a_cell_that_begins_a_formula_is_text_for_a_spreadsheet(cell):
    for part in re.split(r"[;\t\n]", no_formula(cell)):
        assert not re.match(r"\s*[=+\-@\uff1d]", part)


def test_table_csv_keeps_numbers_and_disarms_text(tmp_path):
    home = make_study(tmp_path / "shift")
    path = home / "study.json"
    study = json.loads(path.read_text())
    study["rows"][1]["label"] = '=HYPERLINK("http://evil.example","x")'
    study["rows"][2]["label"] = "@SUM(1+1)*cmd|' /C calc'!A0"
    study["rows"][3]["note"] = "-2+3\x1b[31m"
    study["recipe"] = "+evil"
    path.write_text(json.dumps(study))
    write_report([home])
    rows = list(csv.DictReader(io.StringIO((home / "table.csv").read_text())))
    assert {row["study"] for row in rows} == {"'+evil"}
    by_spec = {row["synthesis"]: row for row in rows}
    assert by_spec["random"]["row"] == '\'=HYPERLINK("http://evil.example","x")'
    assert by_spec["dense"]["row"].startswith("'@SUM")
    assert by_spec["random+dot"]["remarks"] == r"'-2+3\x1b[31m"
    assert float(by_spec["dense"]["difference"]) < 0  # a number may be negative


def test_a_report_sends_no_escape_to_the_terminal(poisoned, capsys):
    assert main(["report", str(poisoned)]) == 0
    out, err = capsys.readouterr()
    assert not ESCAPES.search(out + err)
    assert r"\x1b]0;owned" in out
    assert "[red]r[/red]" in out  # rich's markup is text, too


def test_an_error_is_one_line_without_escapes(tmp_path, capsys):
    assert main(["report", str(tmp_path / "a\x1b[31m\nsynthesizer: done")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert r"a\x1b[31m\nsynthesizer: done" in err


def test_progress_lines_have_no_escapes(capsys):
    Lines().say(HOSTILE)
    StatusLines([RowStatus(HOSTILE, 1, 1.0)], 1, 10).say(HOSTILE)
    out = capsys.readouterr().out
    assert not ESCAPES.search(out)
    assert out.count(r"\x1b[31m") == 2


def test_a_live_table_on_a_real_terminal_shows_labels_as_text():
    script = (
        "from synthesizer_attention.study.live import LiveTable, RowStatus\n"
        f"board = LiveTable([RowStatus({HOSTILE!r}, 1, 1.0)], 1, 10)\n"
        f"board.metric = {HOSTILE!r}\n"
        f"board.refresh(); board.say({HOSTILE!r}); board.close()\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=theirs, env={**environment(), "TERM": "xterm"}
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(100) == 0
    assert b"\x1b]0;" not in written  # no title was set
    assert b"\x1b[31m" not in written
    assert b"\x9b" not in written.replace("\u202e".encode(), b"")
    assert rb"\x1b" in written


def test_printable_keeps_what_is_text():
    kept = "Grüße, 東京, \U0001f600, שלום\u200f, a\u0301, tab"
    assert printable(kept) == kept
    assert printable("a\tb\nc", lines=True) == "a\tb\nc"
    assert printable("a\tb\r\n\ud800\u2028") == r"a\tb\r\n\ud800\u2028"
