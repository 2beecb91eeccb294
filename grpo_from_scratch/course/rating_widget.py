"""A rating session in a notebook: replies shown blind, rated by three keys and Enter, or with the mouse.

The widget holds nothing: each rating is in the session's file before the next reply is shown, so a kernel may die, and
what `grpo rate` saved in a terminal counts here too. Keys are typed into a text field, because only there JupyterLab
leaves them alone: on a button "b" would insert a cell, and the arrows would go to another one.
"""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from grpo_from_scratch.evaluation.agreement import SCALE
from grpo_from_scratch.evaluation.ratings import ASPECTS, RatingSession, Scores, Sitting, parse_scores, transcript

TEXT = '<div style="line-height: 1.5">{}</div>'
LINE = '<div style="display: flex"><span style="flex: 0 0 5.5em; opacity: .65">{}</span><span>{}</span></div>'
REPLY = '<div style="margin: 6px 0; padding: 4px 10px; border-left: 3px solid var(--jp-brand-color1, blue)">{}</div>'


class RatingWidget:
    """Rate a session's replies as ``rater``; the last line of a cell shows it.

    Where no widget can be shown (GitHub, a terminal) there is a table of the ratings so far and the reply to rate next;
    ``submit`` does what the text field does.

    Raises:
        FileNotFoundError, ValueError: as RatingSession does of a folder, and of a rater without a name.
    """

    def __init__(self, session: RatingSession | str | Path, rater: str):
        session = session if isinstance(session, RatingSession) else RatingSession(session)
        self.sitting = Sitting(session, rater)
        self.shown, self.message = widgets.HTML(), widgets.HTML()
        self.rows = {
            aspect: widgets.ToggleButtons(options=list(SCALE), style={"button_width": "3em"}) for aspect in ASPECTS
        }
        # continuous_update=False: the value comes with Enter, or when the field is left
        self.field = widgets.Text(placeholder="4 5 3, then Enter", continuous_update=False, layout={"width": "12em"})
        self.field.observe(lambda change: self.submit(change["new"]), "value")
        save = widgets.Button(description="Save", layout={"width": "6em"})
        back = widgets.Button(description="Back", layout={"width": "6em"})
        save.on_click(lambda _: self.choose())
        back.on_click(lambda _: self.back())
        rows = {"type": self.field, **self.rows, "": widgets.HBox([save, back])}  # Tab comes to the field first
        labelled = [widgets.HBox([widgets.Label(name, layout={"width": "9em"}), row]) for name, row in rows.items()]
        self.view = widgets.VBox([self.shown, *labelled, self.message], layout={"max_width": "46em"})
        self._refresh()

    def submit(self, typed: str) -> None:
        """What Enter does: save three digits in the order of ASPECTS, or go "b"ack. Nonsense is told, not saved."""
        typed = typed.strip().lower()
        if typed == "b":
            self.back()
        elif typed:
            self._try(lambda: parse_scores(typed))

    def choose(self) -> None:
        """What Save does: save the three buttons that are pressed."""
        self._try(lambda: {aspect: row.value for aspect, row in self.rows.items()})

    def back(self) -> None:
        """To the reply before, with its rating."""
        self.sitting.back()
        self._refresh()

    def _try(self, scores: Callable[[], Scores]) -> None:
        try:
            given = scores()
            self.sitting.rate(given)
        except (ValueError, OSError) as error:  # in a callback it would vanish into the server's log
            self._say(f"Not saved: {error}.")
        else:
            self._refresh(f"Saved {' '.join(str(given[aspect]) for aspect in ASPECTS)}.")

    def _refresh(self, said: str = "") -> None:
        item = self.sitting.item
        before = self.sitting.rated.get(item.id, {}) if item else {}
        for aspect, row in self.rows.items():
            row.value = before.get(aspect)  # None presses no button: only what a person chose is an answer
        self.field.value = ""
        lines = [f"<b>{self._progress()}</b> (0 is worst, 5 is best; b goes back)"]
        if item:
            lines += [LINE.format(who, _escaped(text)) for who, text in transcript(item)]
            lines.append(REPLY.format(_escaped(item.reply) or "<i>(nothing)</i>"))
        self.shown.value = TEXT.format("".join(lines))
        self._say(said)

    def _say(self, text: str) -> None:
        self.message.value = TEXT.format(html.escape(text))

    def _progress(self) -> str:
        rated, total = len(self.sitting.rated), len(self.sitting.order)
        where = f"Reply {self.sitting.position + 1} of {total}" if self.sitting.item else "Every reply is rated"
        return f"{where}; {rated} of {total} rated"

    def __str__(self) -> str:
        rated, lines = self.sitting.rated, [self._progress()]
        for number, item in enumerate(self.sitting.order, start=1):
            if item.id in rated:
                lines.append(f"{number:4}  {' '.join(str(rated[item.id][aspect]) for aspect in ASPECTS)}  {item.reply}")
        if self.sitting.item:
            lines += [f"{who}: {text}" for who, text in transcript(self.sitting.item)]
            lines.append(f"B, to rate: {self.sitting.item.reply}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {**self.view._repr_mimebundle_(), "text/plain": str(self)}


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
