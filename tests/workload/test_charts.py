from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np

from corepipe.workload.charts import Curve, Panel, middle, page, spread, svg, table

X = np.array([0.0, 5.0, 10.0])


def test_a_curve_goes_through_its_values() -> None:
    shown = svg(Panel("A & B", "ms", (Curve("one", X, np.array([0.0, 4.0, 2.0]), dots=True),), 10.0, "s"))
    tree = ET.fromstring(shown[shown.index("<svg") :])
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in tree.iter("circle")]
    assert circles == [(60.0, 170.0), (460.0, 20.0), (860.0, 95.0)]
    assert "A &amp; B (ms)" in shown
    assert "10 s" in shown


def test_what_is_missing_is_left_out() -> None:
    shown = svg(Panel("x", "", (Curve("one", X, np.array([1.0, np.nan, 2.0])),), 10.0))
    assert "nan" not in shown
    assert shown.count("L") == 1
    empty = svg(Panel("x", "", (Curve("none", X[:0], X[:0]),), 10.0))
    assert 'd=""' in empty


def test_spread_is_median_and_greatest_of_each_interval() -> None:
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    median, most = spread(np.array([0.1, 0.2, 0.3, 2.5]), np.array([1.0, 9.0, 2.0, 4.0]), edges)
    assert median.values.tolist()[::2] == [2.0, 4.0]
    assert most.values.tolist()[::2] == [9.0, 4.0]
    assert np.isnan(median.values[1])
    assert median.x.tolist() == middle(edges).tolist() == [0.5, 1.5, 2.5]


def test_a_page_is_one_file_with_everything_escaped() -> None:
    whole = page("<m>", "a < b", [Panel("p", "", (Curve("c", X, X),), 10.0)], table([("x", "y"), ("<", "1")]))
    assert not re.search(r"src=|href=|<m>", whole)
    assert "&lt;m&gt;" in whole
    assert "<th>x</th>" in whole
    assert "<td>&lt;</td>" in whole
