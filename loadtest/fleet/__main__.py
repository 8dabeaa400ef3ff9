"""Simulates a fleet and writes loadtest/results/fleet.json, fleet.md and fleet.png.

    python -m loadtest.fleet [--most-replicas 1000] [--processes 2] [--save]

Service times come from loadtest/results/fleet_service_times.json (python -m loadtest.fleet.measure --save).
"""

import argparse
import json
import os
import sys
import time

from loadtest.facts import facts
from loadtest.fleet import against_server, cases, limits, plot, report, service_times
from loadtest.processes import RESULTS


def main() -> int:
    """Simulate, print and perhaps save."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fleet", description=__doc__.partition("\n")[0])
    parser.add_argument("--most-replicas", type=int, default=max(cases.SIZES), help="of the fleets that are simulated")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that simulate at a time")
    parser.add_argument("--save", action="store_true", help="write fleet.json, fleet.md and fleet.png")
    options = parser.parse_args()
    begun = time.perf_counter()
    times, measured = service_times.load()
    sizes = [size for size in cases.SIZES if size <= options.most_replicas]
    document = {
        "command": "python -m loadtest.fleet --save",
        "facts": facts(),
        "service_times": {key: measured[key] for key in ("command", "facts", "fit", "errors")},
        **cases.simulate_all(times, options.processes, sizes),
    }
    tokens_a_second = document["capacity_a_core"]["tokens_a_second"]
    document["autoscaler"] = cases.autoscale(tokens_a_second, cases.behaviour(document["behaviour"]))
    document["limits"] = limits.limits(measured, document)
    document["loading"] = limits.loading(measured)
    document["costs"] = limits.costs(times, document)
    document["one_server"] = json.loads(against_server.FILE.read_text(encoding="utf-8"))
    print(report.page(document))
    print(f"simulated in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if options.save:
        (RESULTS / "fleet.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
        (RESULTS / "fleet.md").write_text(report.page(document), encoding="utf-8")
        plot.draw(document, RESULTS / "fleet.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
