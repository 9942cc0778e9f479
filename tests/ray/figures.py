"""Rows a second, CPU per operator and memory: one process, partitions on Ray, and Ray Data.

    PYTHONPATH=. .venv-ray/bin/python -m tests.ray.figures --rows 50000

Each way is a process of its own, before the same engine, which is another process. CPU time is that
of the process and of all that it started, looked at four times a second; PostgreSQL's stands apart.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import msgspec
from aiohttp import web

from tests.support.postgres import postgres_server

ROOT = Path(__file__).parents[2]
FLOW = """
flow: three
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "Sum up {{ row.text }}", max_tokens: 16}
  good: {kind: llm, prompt: "{{ row.id }} {{ summary }} What is good?", max_tokens: 16}
  verdict: {kind: llm, prompt: "{{ row.id }} {{ good }} Decide", max_tokens: 16}
outputs: {id: row.id, summary: summary, verdict: verdict}
"""
OPERATORS = 3
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def serve_engine(port_file):
    """Answer at once, with a text of 40 characters; count the calls."""
    calls = 0
    answer = msgspec.json.encode(
        {
            "choices": [
                {"message": {"role": "assistant", "content": "s" * 40}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 250, "completion_tokens": 10},
        }
    )

    async def handle(request):
        nonlocal calls
        if request.path.endswith("/chat/completions"):
            await request.read()
            calls += 1
            return web.Response(body=answer, content_type="application/json")
        if request.path == "/calls":
            return web.json_response(calls)
        return web.json_response({"data": [{"id": "tiny"}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    Path(port_file).write_text(str(runner.addresses[0][1]))
    await asyncio.Event().wait()


class Tree:
    """A process and its descendants: their CPU time, and the memory of the largest by name."""

    def __init__(self, root):
        self.root, self.cpu, self.names = root, {}, {}
        self.memory = {}  # by name: MiB of the largest process that has it, time by time
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self):
        self._is_over.set()
        self._thread.join()
        return sum(self.cpu.values())

    def shares(self):
        """Return CPU seconds of the command, its actors, and all else that Ray has."""
        found = {}
        for pid, seconds in self.cpu.items():
            name = self.names.get(pid, "other")
            found[name] = round(found.get(name, 0.0) + seconds, 1)
        return found

    def _follow(self):
        while not self._is_over.wait(0.25):
            self._look()

    def _look(self):
        stats = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    raw = (entry / "stat").read_text()
                    name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
                except OSError:
                    continue
                fields = raw.rpartition(")")[2].split()
                stats[int(entry.name)] = (int(fields[1]), fields, name)
        wanted = {self.root}
        grew = True
        while grew:
            more = {pid for pid, (parent, _, _) in stats.items() if parent in wanted} - wanted
            wanted |= more
            grew = bool(more)
        largest = dict.fromkeys(self.memory, 0.0)
        for pid in wanted & stats.keys():
            _, fields, name = stats[pid]
            self.cpu[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            if pid == self.root:
                self.names[pid] = "command"
            elif name.startswith("ray::") and not name.startswith("ray::IDLE"):
                # "ray::Partition.run", or before its first task "ray::its-name:Partition".
                self.names[pid] = "ray::" + name[5:].split(":")[-1].split(".")[0]
            if (known := self.names.get(pid)) is not None:
                mib = int(fields[21]) * _PAGE_MIB
                largest[known] = max(largest.get(known, 0.0), mib)
        for name, mib in largest.items():
            self.memory.setdefault(name, []).append(mib)


def measured(words, folder, environ):
    """Return seconds, CPU seconds, and the tree of a command."""
    began = time.monotonic()
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=said, stderr=said)
    tree = Tree(process.pid)
    status = process.wait()
    cpu = tree.end()
    assert status == 0, (folder / "said").read_text()[-3000:]
    return time.monotonic() - began, cpu, tree


def ray_data(inputs, out, url):
    """Run each operator as a stage of Ray Data, with its own HTTP processor."""
    import ray
    from ray.data.llm import HttpRequestProcessorConfig, build_processor

    # Each of the three stages has an actor of its own, and waits for ever where there are two CPUs.
    ray.init(address="local", num_cpus=8, object_store_memory=200 << 20, include_dashboard=False)
    dataset = ray.data.read_json(str(inputs))

    def stage(name, prompt):
        config = HttpRequestProcessorConfig(
            url=f"{url}/v1/chat/completions", qps=None, batch_size=64, concurrency=1,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        return build_processor(
            config,
            preprocess=lambda row: {
                "payload": {
                    "model": "tiny",
                    "max_tokens": 16,
                    "temperature": 0.0,
                    "messages": [{"role": "user", "content": prompt(row)}],
                }
            },
            postprocess=lambda row: {
                **{key: row[key] for key in ("id", "text", "summary", "good") if key in row},
                name: row["http_response"]["choices"][0]["message"]["content"],
            },
        )

    dataset = stage("summary", lambda row: f"Sum up {row['text']}")(dataset)
    dataset = stage("good", lambda row: f"{row['id']} {row['summary']} What is good?")(dataset)
    dataset = stage("verdict", lambda row: f"{row['id']} {row['good']} Decide")(dataset)
    dataset.drop_columns(["text", "good"]).write_json(str(out))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--distinct", type=int, default=0, help="texts; 0: all differ")
    parser.add_argument("--ways", default="one,ray,postgres,data")
    parser.add_argument("--engine")
    parser.add_argument("--data", nargs=3)
    chosen = parser.parse_args()
    if chosen.engine:
        asyncio.run(serve_engine(chosen.engine))
    if chosen.data:
        ray_data(*chosen.data)
        return
    with tempfile.TemporaryDirectory() as place, postgres_server() as database:
        folder = Path(place)
        distinct = chosen.distinct or chosen.rows
        with (folder / "rows.jsonl").open("wb") as file:
            for n in range(chosen.rows):
                text = f"{n % distinct:08} " + "word " * 200
                file.write(msgspec.json.encode({"id": n, "text": text}) + b"\n")
        (folder / "three.yaml").write_text(FLOW)
        environ = os.environ | {
            "PYTHONPATH": str(ROOT), "KAIROS_RUNS": str(folder / "kairos"),
            "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore",
            "RAY_worker_niceness": "0",  # as one process has; Ray's own is 15
        }  # fmt: skip
        engine = subprocess.Popen(
            [sys.executable, "-m", "tests.ray.figures", "--engine", str(folder / "port")],
            env=environ,
        )
        try:
            while not (folder / "port").exists() or not (folder / "port").read_text():
                time.sleep(0.05)
            url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
            compare(chosen, folder, environ, url, database)
        finally:
            engine.kill()


def compare(chosen, folder, environ, url, database):
    program = [sys.executable, "-m", "kairos.cli.main", "run", "three.yaml", "--inputs"]
    program += ["rows.jsonl", "--engine", f"{url},max_num_seqs=64", "--no-cache"]
    on = ["--on", "local-ray", "--partitions", "2"]
    ways = {
        "one": [*program, "--out", "one.jsonl"],
        "ray": [*program, "--out", "ray.jsonl", *on],
        "postgres": [*program, "--out", "postgres.jsonl", *on, "--results", database.url],
        "data": [
            sys.executable, "-m", "tests.ray.figures", "--data", "rows.jsonl", "data.out", url,
        ],
    }  # fmt: skip
    for name in chosen.ways.split(","):
        before = calls_of(url)
        apart = Tree(database.process) if name == "postgres" else None
        took_s, cpu_s, tree = measured(ways[name], folder, environ)
        calls = calls_of(url) - before
        figures = {
            "way": name,
            "rows": chosen.rows,
            "distinct": chosen.distinct or chosen.rows,
            "seconds": round(took_s, 1),
            "rows_s": round(chosen.rows / took_s, 1),
            "cpu_s": round(cpu_s, 1),
            "cpu_ms_per_operator": round(1e3 * cpu_s / (OPERATORS * chosen.rows), 3),
            "cpu_s_of": tree.shares(),
            "calls": calls,
            "mib": {name: memory_course(course) for name, course in tree.memory.items()},
        }
        if apart is not None:
            figures["postgres_cpu_s"] = round(apart.end(), 1)
        print(json.dumps(figures), flush=True)
    outs = [folder / f"{name}.jsonl" for name in ("one", "ray", "postgres")]
    made = {each.read_bytes() for each in outs if each.exists()}
    print(json.dumps({"tables that differ": len(made) - 1}), flush=True)


def memory_course(course):
    """Return the most memory that a process has had after each fifth of its time."""
    return [round(max(course[: max(1, len(course) * n // 5)])) for n in range(1, 6)]


def calls_of(url):
    with urllib.request.urlopen(f"{url}/calls", timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
