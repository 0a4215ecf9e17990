#!/usr/bin/env python3
"""Load and faults: streams far beyond what the server lets in, a fifth of the clients vanishing, nothing lost.

    python clients/load.py URL [--requests 10000] [--concurrency 1000] [--vanish 0.2] [--pid PID] [--json FILE]

Every answer is 200 or 503; every stream that is read to its end equals what the same prompt says alone; afterwards
all blocks are back; the server's memory (--pid) after the run is what it was after as many requests
before it, which take all the buffers that there will be, within 5 %.
Standard library only.
"""
import argparse
import asyncio
import collections
import json
import pathlib
import random
import sys
import time
import urllib.parse

PROMPTS = 64


def body(i, stream, max_tokens):
    prompt = [5 + i % 50, 7 + i // 50] * (1 + i % 20)
    return json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                       "stream": stream}).encode()


async def post(host, port, data):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    await writer.drain()
    return reader, writer


async def status_of(reader):
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    return status


async def chunks(reader):
    """The pieces of a body in chunked coding; IncompleteReadError where it is cut."""
    while size := int(await reader.readline(), 16):
        piece = await reader.readexactly(size + 2)
        yield piece[:-2]


async def stream(host, port, i, max_tokens, vanish_after):
    """The status, and the text if the stream was read to its end."""
    reader, writer = await post(host, port, body(i, True, max_tokens))
    try:
        status = await status_of(reader)
        if status != 200:
            return status, None
        text, rest, pieces, ended = "", b"", 0, False
        async for piece in chunks(reader):
            pieces += 1
            if vanish_after is not None and pieces > vanish_after:
                return "vanished", None
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    ended = True
                elif event.startswith(b"data: "):
                    chunk = json.loads(event[6:])
                    if "error" in chunk:
                        return f"error {chunk['error']['code']}", None
                    text += chunk["choices"][0]["text"]
        return (200, text) if ended else ("cut", None)
    finally:
        writer.close()


async def alone(host, port, i, max_tokens):
    while True:
        reader, writer = await post(host, port, body(i, False, max_tokens))
        status = await status_of(reader)
        answer = await reader.read()
        writer.close()
        if status == 200:
            return json.loads(answer)["choices"][0]["text"]
        await asyncio.sleep(0.1)


async def metrics(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = {}
    for line in text.splitlines():
        if "{" in line and not line.startswith("#"):
            found.setdefault(line.split("{")[0], float(line.rsplit(" ", 1)[1]))
    return found


def resident_bytes(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


async def run(args):
    url = urllib.parse.urlsplit(args.url)
    host, port = url.hostname, url.port
    rng = random.Random(args.seed)
    want = [await alone(host, port, i, args.max_tokens) for i in range(PROMPTS)]
    seen, wrong, memory = collections.Counter(), [], []
    jobs = iter(range(2 * args.requests))
    began, done = time.monotonic(), 0

    async def client():
        nonlocal done
        for _ in jobs:
            i = rng.randrange(PROMPTS)
            vanish = rng.randrange(args.max_tokens) if rng.random() < args.vanish else None
            status, text = await stream(host, port, i, args.max_tokens, vanish)
            seen[status] += 1
            if text is not None and text != want[i]:
                wrong.append((i, text))
            done += 1
            if args.pid and done in (args.requests, 2 * args.requests):
                memory.append(resident_bytes(args.pid))
            if status == 503 and args.retry_after:
                await asyncio.sleep(args.retry_after * (0.5 + rng.random()))

    await asyncio.gather(*(client() for _ in range(args.concurrency)))
    took = time.monotonic() - began
    after = await metrics(host, port)
    until = time.monotonic() + 30
    held = lambda m: m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + m["vllm:kv_cache_usage_perc"] + m["ballast_queued_requests"]
    while held(after) and time.monotonic() < until:
        after = await metrics(host, port)
    result = {
        "requests": 2 * args.requests, "concurrency": args.concurrency, "seconds": round(took, 1),
        "statuses": {str(status): n for status, n in seen.items()}, "wrong_streams": len(wrong),
        "blocks_back": held(after) == 0, "memory_bytes": memory,
    }
    result["ok"] = (set(seen) <= {200, 503, "vanished"} and not wrong and result["blocks_back"] and seen[200] > 0
                    and (not memory or memory[-1] <= 1.05 * memory[0]))
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--vanish", type=float, default=0.2)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--retry-after", type=float, default=0.05, help="seconds until a refused client asks again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    result = asyncio.run(run(args))
    print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
