"""The page of `dynamicgate bench` for a language model: how long a prompt and one more token take, and where the time
goes. Needs no torch."""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from dynamicgate.files import write_text
from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.number_format import ABSENT, format_date
from dynamicgate.lab.report.page_header import machine_facts
from dynamicgate.lab.report.reading import COMPILED, get_object, get_objects
from dynamicgate.lab.report.svg import WIDE, Scale, drawing, for_every_screen, line, tag, tooltip, words

HERE = Path(__file__).parent
DENSE, OURS = "dense", COMPILED
BAR_HEIGHT, BAR_GAP, TITLE_HEIGHT, LETTER_WIDTH = 22.0, 8.0, 34.0, 7.6
COLOURS = {DENSE: 3, f"{DENSE}, torch.compile": 6, f"{DENSE}, compiled": 0, "gates in torch": 5, OURS: 2}
Row = Mapping[str, Any]


def write_language_timing(found: Mapping[str, Any], path: Path) -> Path:
    """Write the page of these times, as `timing.json` holds them."""
    write_text(path, render_language_timing(found))
    return path


def bars(rows: Sequence[Row], width: float = WIDE) -> str:
    """A bar for each way to run the model, for prompts and for tokens, each from zero on a scale of its own."""
    names = [name for row in rows for name in row["us"]]
    left = 12 + LETTER_WIDTH * max(map(len, names))
    body, y = [], 4.0
    for row in rows:
        scale = Scale(0.0, max(row["us"].values()), left, width - 84.0)
        body.append(words(0, y + 16, row["what"], class_="label relative"))
        y += TITLE_HEIGHT
        top = y
        for name, us in row["us"].items():
            said = tooltip(f"{name}: {milliseconds(us)} ms, {us / row['us'][OURS]:.2f} x the time of {OURS}")
            middle = y + BAR_HEIGHT / 2 + 4.5
            at = {"x": scale.start, "y": y, "width": scale(us) - scale.start, "height": BAR_HEIGHT}
            body.append(words(left - 8, middle, name, class_="tick", text_anchor="end"))
            body.append(tag("rect", said, **at, class_=f"mark {colour_class(COLOURS.get(name, 8))}"))
            body.append(words(scale(us) + 6, middle, f"{milliseconds(us)} ms", class_="tick"))
            y += BAR_HEIGHT + BAR_GAP
        rival = scale(row["us"][row["rival"]])
        body.append(line(rival, top - 4, rival, y - BAR_GAP + 4, class_="target"))
        y += BAR_GAP
    label = "Milliseconds of a prompt and of one more token, by how the model runs"
    return drawing(width, y, label, *body)


def milliseconds(us: float) -> str:
    """Three digits or more."""
    ms = us / 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def sentence(rows: Sequence[Row]) -> str:
    """What the gates gain over the fastest dense way to run the same layers, and whether that is certain."""
    return " ".join(f"{capitalised(row['what'])}: {_verdict(row)}" for row in rows)


def capitalised(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def _verdict(row: Row) -> str:
    low, middle, high = row["gate_gain"]
    over = f"than the fastest dense ({row['rival']})"
    if low > 1.0:
        return f"gates make it {middle:.2f} times as fast, faster {over} in every round."
    if high < 1.0:
        return f"slower {over} in every round, {middle:.2f} times as fast: gates gain nothing here."
    return f"{middle:.2f} times as fast as the fastest dense ({row['rival']}), {low:.2f} to {high:.2f}: no clear gain."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(kind: str, values: Sequence[str]) -> str:
        first, *numbers = values
        rest = "".join(f'<{kind} class="number">{escape(value)}</{kind}>' for value in numbers)
        return f"<tr><{kind}>{escape(first)}</{kind}>{rest}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f'<div class="scroll"><table><thead>{cells("th", head)}</thead><tbody>{body}</tbody></table></div>'


def _times(rows: Sequence[Row]) -> str:
    prompt, token = rows
    found = []
    for name, us in prompt["us"].items():
        one = token["us"][name]
        found.append([name, milliseconds(us), f"{1e6 * prompt['tokens'] / us:,.0f}", milliseconds(one),
                      f"{1e6 / one:,.1f}"])  # fmt: skip
    return _table(["runs as", "prompt, ms", "tokens a second", "one more token, ms", "tokens a second"], found)


def _gains(rows: Sequence[Row]) -> str:
    found = []
    for row in rows:
        gains = [f"{mid:.2f} ({low:.2f} to {high:.2f})" for low, mid, high in (row["kernel_gain"], row["gate_gain"])]
        found.append([row["what"], row["rival"], *gains])
    return _table(["", "fastest dense", "kernel gain", "gate gain"], found)


def parts_table(plan: Mapping[str, Any]) -> str:
    """Where the time of a native call goes; nothing where the model does not run natively as a whole."""
    regimes = [regime for regime in get_objects(plan, "regimes") if regime.get("parts")]
    if not regimes:
        return ""
    parts = list(dict.fromkeys(name for regime in regimes for name in regime["parts"]))
    found = []
    for name in parts:
        cells = []
        for regime in regimes:
            us, total = regime["parts"].get(name), sum(regime["parts"].values()) or 1.0
            cells += [ABSENT, ABSENT] if us is None else [milliseconds(us), f"{us / total:.0%}"]
        found.append([name, *cells])
    head = [column for regime in regimes for column in (f"{regime['name']}, ms", "of it")]
    return _table(["part", *head], found)


def render_language_timing(found: Mapping[str, Any]) -> str:
    """The HTML of the page."""
    rows = get_objects(found, "rows")
    meta, plan = get_object(found, "meta"), get_object(found, "plan")
    title = f"{found.get('model', 'A language model')} on the clock"
    said = (
        "The kernel gain is eager dense over the fastest dense: what compiling alone gains, with or without gates. The "
        "gate gain is the fastest dense over ours: what gates gain on top. Both are the median over "
        f"{found.get('rounds', 'several')} rounds in which all take turns, with the lowest and the highest."
    )
    sections = [
        ("Time", f"<p>The dotted line is the fastest dense.</p>{for_every_screen(partial(bars, rows))}"),
        ("In numbers", _times(rows)),
        ("What gains it", f"<p>{escape(said)}</p>{_gains(rows)}"),
        ("Where the time goes", parts_table(plan)),
        ("The plan", f"<pre>{escape(str(found.get('plan_text', '')))}</pre>"),
    ]
    notes = "".join(f"<p>{escape(str(note))}</p>" for note in found.get("notes", ()))
    shown = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content)
    style = (HERE / "page.css").read_text(encoding="utf-8") + "pre{overflow-x:auto;font:0.85rem/1.45 var(--mono)}"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    facts = ", ".join(filter(None, (machine_facts(get_object(meta, "machine")), format_date(meta.get("created", "")))))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)} · DynamicGate</title><style>{style}</style></head><body><header>"
        f'<p class="eyebrow">DynamicGate report</p><h1>{escape(title)}</h1>'
        f'<p class="headline">{escape(sentence(rows))}</p><p>{escape(facts)}</p>{notes}'
        f'<p class="command"><span>created with</span> <code>{escape(str(meta.get("command", "")))}</code></p>'
        f"</header><main>{shown}</main></body></html>\n"
    )
