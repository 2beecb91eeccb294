"""A live control for a notebook, with a still picture behind it for viewers without widgets (GitHub, a PDF)."""

import base64
import html
import io
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes

DPI = 100


def slider(draw: Callable[..., tuple[Axes, str]], **controls: Any) -> None:
    """Show ``draw(**values)`` under one control for each of its arguments, and draw again when one moves.

    A kernel draws each picture, so drawing should take well under half a second.

    Args:
        draw: makes a figure from the controls' values; returns an Axes of it and a caption, a line of text with the
            numbers to watch. The caption is what the tests of a stored notebook compare, since a picture's bits
            differ between machines.
        controls: by argument name, how ``draw`` starts and where it may go: ``(low, high, step, start)``, a list of
            choices (the first is the start), or a widget.

    Raises:
        TypeError: a control is none of these.
        Exception: what ``draw`` raises for the starting values; later its error is shown in place of the caption.
    """
    boxes = {name: control_widget(name, control) for name, control in controls.items()}
    # a VBox stretches what it holds: without align_self the picture is blown up to the page's width
    picture = widgets.Image(format="png", layout=widgets.Layout(align_self="flex-start", max_width="100%"))
    caption = widgets.HTML()

    def redraw(_change=None):
        values = {name: box.value for name, box in boxes.items()}
        picture.value, text = rendered(draw, values)
        caption.value = f"<b>{html.escape(text)}</b>"
        return ", ".join(f"{name}={value}" for name, value in values.items()), text

    def redraw_or_tell(change):
        try:
            redraw(change)
        except Exception as error:  # in a callback it would vanish into the server's log
            caption.value = f"<b>{html.escape(f'{type(error).__name__}: {error}')}</b>"

    settings, text = redraw()
    for box in boxes.values():
        box.observe(redraw_or_tell, "value")
    view = widgets.VBox([*boxes.values(), caption, picture])
    still = {"image/png": base64.b64encode(picture.value).decode(), "text/plain": f"slider at {settings}\n{text}"}
    display({**view._repr_mimebundle_(), **still}, raw=True)


def control_widget(name: str, control: Any) -> widgets.Widget:
    """The widget for one entry of ``controls``."""
    if isinstance(control, widgets.Widget):
        return control
    if isinstance(control, list):
        return widgets.Dropdown(options=control, description=name)
    if isinstance(control, tuple) and len(control) == 4:
        low, high, step, start = control
        kind = widgets.IntSlider if all(isinstance(number, int) for number in control) else widgets.FloatSlider
        # continuous_update would queue a picture for every pixel the mouse crosses
        return kind(start, min=low, max=high, step=step, description=name, continuous_update=False)
    raise TypeError(f"{name} should be (low, high, step, start), a list or a widget, not {control!r}")


def rendered(draw: Callable[..., tuple[Axes, str]], values: dict[str, Any]) -> tuple[bytes, str]:
    """The PNG and the caption for these values; the figure is closed, so that the cell does not show it again."""
    axes, text = draw(**values)
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight")
    plt.close(axes.figure)
    return buffer.getvalue(), text
