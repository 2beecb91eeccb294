"""The slider in a plain kernel: what is stored, and what moves. In a browser: test_browser.py."""

import base64

import ipywidgets as widgets
import matplotlib
import matplotlib.pyplot as plt
import pytest

matplotlib.use("Agg")

from grpo_from_scratch.course import plots  # noqa: E402
from grpo_from_scratch.course import slider as slider_module  # noqa: E402
from grpo_from_scratch.course.slider import control_widget, slider  # noqa: E402


def draw(power, shape):
    if power == 3:
        raise ValueError("three is <too> much")
    ax, _ = plots.lines({shape: [0, 1, 2**power]}, xlabel="step", ylabel="value")
    return ax, f"ends at {2**power} & {shape}"


@pytest.fixture
def shown(monkeypatch):
    """What a slider displays: the mime bundle, and the widgets in it."""
    bundles, boxes = [], []
    monkeypatch.setattr(slider_module, "display", lambda bundle, raw: bundles.append(bundle))
    real = widgets.VBox

    def vbox(children, **kwargs):
        boxes.extend(children)
        return real(children, **kwargs)

    monkeypatch.setattr(slider_module.widgets, "VBox", vbox)

    def show(**controls):
        slider(draw, **controls)
        return bundles[-1], boxes

    return show


def test_slider_stores_a_picture_and_its_numbers(shown):
    """NB-03: without a kernel there is still something to see."""
    bundle, _ = shown(power=(0, 4, 1, 2), shape=["round", "square"])
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "slider at power=2, shape=round\nends at 4 & round"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert not plt.get_fignums()  # else the cell would show the picture twice


def test_slider_redraws_when_a_control_moves(shown):
    _, (power, shape, caption, picture) = shown(power=(0, 4, 1, 2), shape=["round", "square"])
    before = picture.value
    power.value = 1
    assert picture.value != before and caption.value == "<b>ends at 2 &amp; round</b>"
    shape.value = "square"
    assert caption.value == "<b>ends at 2 &amp; square</b>"


def test_slider_shows_an_error_in_place_and_recovers(shown):
    _, (power, _, caption, picture) = shown(power=(0, 4, 1, 2), shape=["round"])
    power.value = 3
    assert caption.value == "<b>ValueError: three is &lt;too&gt; much</b>"
    power.value = 2
    assert caption.value == "<b>ends at 4 &amp; round</b>"


def test_slider_fails_when_it_cannot_start(shown):
    with pytest.raises(ValueError, match="too"):
        shown(power=(0, 4, 1, 3), shape=["round"])


def test_control_widget_kinds():
    whole, real = control_widget("n", (0, 4, 1, 2)), control_widget("n", (0, 1.0, 0.1, 0.5))
    assert isinstance(whole, widgets.IntSlider) and (whole.min, whole.max, whole.step, whole.value) == (0, 4, 1, 2)
    assert isinstance(real, widgets.FloatSlider) and not real.continuous_update and real.description == "n"
    choices = control_widget("n", ["a", "b"])
    assert isinstance(choices, widgets.Dropdown) and choices.value == "a"
    assert control_widget("n", whole) is whole
    with pytest.raises(TypeError, match="n should be \\(low, high, step, start\\)"):
        control_widget("n", (0, 1))
