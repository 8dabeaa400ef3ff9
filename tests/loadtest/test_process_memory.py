"""The trend of memory samples, compared with numpy."""

import numpy as np

from loadtest.process_memory import trend


def test_trend_is_the_least_squares_line_of_numpy() -> None:
    rng = np.random.default_rng(6)
    seconds = np.sort(rng.uniform(0, 3600, 200))
    values = 300 + seconds * 0.004 + rng.normal(0, 2, 200)
    line = trend(list(seconds), list(values))
    (slope, _), covariance = np.polyfit(seconds, values, 1, cov=True)
    hourly = 360_000 / values.mean()
    assert line is not None
    np.testing.assert_allclose(line.percent_an_hour, slope * hourly, atol=1e-3)
    np.testing.assert_allclose(line.error, covariance[0, 0] ** 0.5 * hourly, atol=1e-3)
