"""The page loadtest/results/fleet.md."""

import textwrap
from collections.abc import Sequence
from typing import Any

from loadtest.fleet.cases import EVEN_LOAD, HARD_LOAD, LOADS_REPLICAS, SHAPES
from loadtest.fleet.limits import ASSUMED
from loadtest.fleet.simulation import CHECK_SECONDS, CHECKS, CONNECT_SECONDS, RETRIES, TIMEOUT


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table; the first column is left-aligned."""
    rules = ["---", *["--:"] * (len(head) - 1)]
    return ["", *(f"| {' | '.join(map(str, row))} |" for row in (head, rules, *rows)), ""]


def milliseconds(value: float | None) -> str:
    """Return milliseconds as a reader takes them in."""
    return "none" if value is None else f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def percent(value: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.2f} %" if 0 < value < 0.1 else f"{100 * value:.1f} %"


def page(document: dict[str, Any]) -> str:
    """Return the page for what loadtest.fleet saves."""
    parts = (_head, _sizes, _loads, _shapes, _autoscaler, _limits, _costs, _one_server)
    return "\n".join(line for part in parts for line in part(document)) + "\n"


def prose(*sentences: str) -> list[str]:
    """Return sentences as the lines of a paragraph."""
    return [*textwrap.wrap(" ".join(sentences), 160), ""]


def _head(document: dict[str, Any]) -> list[str]:
    core, measured = document["capacity_a_core"], document["service_times"]
    errors = measured["errors"]
    return [
        "# A simulated fleet",
        *prose(
            f"`{document['command']}`, {document['facts']['date']}.",
            f"Service times: `{measured['command']}`, all-MiniLM-L6-v2 on one core;",
            f"the fit is off by {percent(errors['mean'])} on average and {percent(errors['largest'])} at most.",
        ),
        *prose(
            f"One core computes {core['requests_a_second']} requests or {core['tokens_a_second']} tokens a second",
            f"of the users' mix (`loadtest/user_mix.py`: on average {document['mean_texts']} texts and",
            f"{document['mean_tokens']} tokens a request). Load is a part of that, times the replicas.",
        ),
        *prose(
            f"Clients give up after {TIMEOUT:g} s, and send a refused request again after its Retry-After,",
            f"{RETRIES} times. A replica that dies answers nothing: requests in flight there are lost,",
            f"new ones are sent again after {CONNECT_SECONDS:g} s, until {CHECKS} health checks,",
            f"{CHECK_SECONDS:g} s apart, have failed. Goodput: answers a second over",
            "requests a second, without the first quarter. Answered: the share of requests that were answered in time,",
            "also after the last arrival.",
            "Seeds are fixed. Plots: `fleet.png`.",
        ),
    ]


def _outcome(row: dict[str, Any]) -> list[str]:
    times = [milliseconds(row[key]) for key in ("p50_ms", "p99_ms")]
    return [
        f"{row['goodput']:.2f}",
        percent(row["answered"]),
        *times,
        *(percent(row[key]) for key in ("refusals", "timed_out", "lost")),
    ]


OUTCOME = ("goodput", "answered", "p50", "p99", "429s", "timed out", "lost")


def _sizes(document: dict[str, Any]) -> list[str]:
    lines = []
    for title, bursty in (
        (f"Equal replicas, Poisson arrivals, load {EVEN_LOAD:g}", False),
        (f"Bursts (3 times the rate), a tenth of the replicas at 1/3 speed, 1, 2 and 20 die; load {HARD_LOAD:g}", True),
    ):
        rows = [row for row in document["sizes"] if row["is_bursty"] == bursty]
        lines += ["", f"## {title}"]
        lines += table(
            ("policy", "replicas", *OUTCOME),
            [[row["policy"] if row["replicas"] > 1 else "any", row["replicas"], *_outcome(row)] for row in rows],
        )
    return lines


def _loads(document: dict[str, Any]) -> list[str]:
    rows = [[row["policy"], row["load"], *_outcome(row)] for row in document["loads"]]
    title = f"## By load: {LOADS_REPLICAS} replicas, bursts, a tenth at 1/3 speed"
    return [title, *table(("policy", "load", *OUTCOME), rows)]


def _shapes(document: dict[str, Any]) -> list[str]:
    rows = [[f"{row['replicas']} x {row['cores']}", *_outcome(row)] for row in document["shapes"]]
    title = f"## {SHAPES[0][0] * SHAPES[0][1]} cores as replicas x cores, least connections, load {EVEN_LOAD:g}"
    return [title, *table(("shape", *OUTCOME), rows)]


def _autoscaler(document: dict[str, Any]) -> list[str]:
    rows = [
        [
            row["rule"],
            row["load"],
            f"{row['start']} s",
            percent(row["late_share"]),
            f"{row['recovered_seconds']} s" if row["load"] != "day" else "",
            percent(row["refused"]),
            row["most"],
            row["overshoot"],
            row["turns_an_hour"],
            row["replicas_over_needed"],
        ]
        for row in document["autoscaler"]["rows"]
    ]
    head = ("rule", "load", "start", "late", "recovered", "refused", "most", "overshoot", "turns/h", "replicas/needed")
    return [
        "## Autoscaler",
        *prose(
            "The HPA's rule every 15 s, on metrics up to 15 s old. Loads: a step and a ramp of 600 s from 4 to 20",
            "replicas' work, and a day with one peak, each with slow noise of 10 %. Start: from being asked for to",
            "serving. Late: share of seconds with more than one second of work waiting. Recovered: since the step,",
            "or since the ramp began. Overshoot: most replicas over the highest need (70 % CPU aims at 1.43). Turns:",
            "changes of direction.",
        ),
        *table(head, rows),
    ]


def _limits(document: dict[str, Any]) -> list[str]:
    rows = [[row["part"], row["replicas"], row["why"]] for row in document["limits"]]
    load = [[row["replicas"], row["nodes"], row["fetch_seconds"], row["start_seconds"]] for row in document["loading"]]
    return [
        "## What saturates first",
        "One-core replicas at full load that each part bears:",
        *table(("part", "replicas", "why"), rows),
        "Seconds until new replicas serve, on nodes that have neither image nor model:",
        *table(("replicas", "nodes", "fetching", "process start to ready"), load),
        "Assumed: " + "; ".join(f"{name} {value:g}" for name, value in ASSUMED.items()) + ".",
        "",
    ]


def _costs(document: dict[str, Any]) -> list[str]:
    rows = [
        [row["text"], row["tokens_a_second"], row["eur_a_million_tokens"], row["eur_a_million_texts"]]
        for row in document["costs"]
    ]
    used, price = ASSUMED["share of capacity used"], ASSUMED["EUR per core and hour"]
    return [
        f"## Costs at {price:g} EUR per core and hour, {used:.0%} of capacity used",
        *table(("text", "tokens/s a core, full batches", "EUR a million tokens", "EUR a million of these"), rows),
    ]


def _one_server(document: dict[str, Any]) -> list[str]:
    server = document["one_server"]
    rows = []
    for row in server["rows"]:
        for name in ("measured", "simulated"):
            numbers = row[name]
            kept = percent(numbers["kept_from_core"]) if "kept_from_core" in numbers else ""
            times = [milliseconds(numbers[key]) for key in ("p50_ms", "p99_ms")]
            if short := numbers.get("p99_ms_of_short_runs"):
                times[1] += f" ({' to '.join(map(milliseconds, short))})"
            rows.append(
                [name, row["load"], row["rate"], *times, f"{numbers['busy']:.2f}", kept, percent(numbers["answered"])]
            )
    facts, settings = server["facts"], server["settings"]
    return [
        "## One real server beside the simulation",
        *prose(
            f"`{server['command']}`, {facts['date']}; load average before: {facts['load average before']};",
            f"of {settings['rounds']} rounds of {settings['seconds']:g} s the one in which the server's threads waited",
            "least for their core, beside other work of the machine or one another. In brackets: the p99 of nine in",
            "ten simulated runs as short as that. Priority of the measuring session:",
            f"{settings['scheduling'] or 'usual'}.",
        ),
        *table(("", "load", "requests/s", "p50", "p99", "core busy", "kept from its core", "answered"), rows),
    ]
