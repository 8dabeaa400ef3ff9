"""Measures a frame of the map of Search in Chromium, of made-up points: `python -m tests.web.map_frames`."""

import argparse
import statistics
from pathlib import Path
from typing import Any

import service.web
from tests.web.browser import executable, sync_api

STATIC = Path(service.web.__file__).parent / "static"
ORIGIN = "http://page.test"
# Milliseconds of each frame while the map is moved and enlarged, and of each search for the point under the pointer.
FRAMES = """async ([count, ratio, frames]) => {
  const { Scene } = await import("/views/search/scene.js");
  const canvas = document.body.appendChild(document.createElement("canvas"));
  const scene = Object.assign(new Scene(canvas), { width: 720, height: 520, ratio });
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(6.283 * Math.random());
  const groups = (_, at) => normal() + 4 * Math.sin((at >> 1) % 12 + at % 2);
  scene.setPoints(Float32Array.from({ length: 2 * count }, groups));
  scene.setLook(Uint8Array.from({ length: count }, (_, at) => at % 12));
  scene.setCaptions([{ text: "a caption", look: 0 }]);
  const taken = (act) => {
    const begun = performance.now();
    act();
    return performance.now() - begun;
  };
  const drawn = [];
  for (let frame = 0; frame < frames; frame++) {
    if (frame < frames / 2) scene.move(3, 2);
    else scene.zoom(1.02, 300, 200);
    drawn.push(taken(() => {
      scene.draw();
      canvas.getContext("2d").getImageData(0, 0, 1, 1); // waits until it is drawn
    }));
    await new Promise(requestAnimationFrame);
  }
  scene.home();
  const found = Array.from({ length: 1000 }, (_, at) => taken(() => scene.find((at * 7) % 720, (at * 13) % 520)));
  return { drawn, found };
}"""


def files(route: Any) -> None:
    """Answer with a file of the page."""
    path = STATIC / route.request.url.removeprefix(f"{ORIGIN}/")
    if not path.is_file():
        route.fulfill(
            body=f'<!doctype html><link rel="stylesheet" href="{ORIGIN}/style.css">', content_type="text/html"
        )
        return
    kind = {".js": "text/javascript", ".css": "text/css"}[path.suffix]
    route.fulfill(body=path.read_bytes(), content_type=kind)


def main() -> None:
    """Print the median and the slowest tenth for each number of points and pixels a CSS pixel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[2_000, 20_000, 50_000])
    parser.add_argument("--frames", type=int, default=120)
    given = parser.parse_args()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        page = browser.new_page()
        page.route("**/*", files)
        page.goto(f"{ORIGIN}/")
        for points in given.points:
            for ratio in (1, 2):
                times = page.evaluate(FRAMES, [points, ratio, given.frames])
                drawn, found = (sorted(times[name]) for name in ("drawn", "found"))
                frame = f"a frame {statistics.median(drawn):.1f} ms, nine of ten {drawn[int(0.9 * len(drawn))]:.1f} ms"
                pointing = f"pointing {1000 * statistics.median(found):.0f} us"
                print(f"{points:,} points, {ratio} pixels a CSS pixel: {frame}, fastest {drawn[0]:.1f} ms; {pointing}")
        browser.close()


if __name__ == "__main__":
    main()
