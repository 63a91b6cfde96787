"""The style of the status page: readable on a phone, in light and dark."""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2126; --soft: #5b6570; --line: #d7dce1; --link: #0b5cad;
  --good: #1a7f37; --bad: #b3261e; --warn: #8a5a00; --panel: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --text: #e4e8ec; --soft: #9aa5b1; --line: #333b44;
  --link: #6cb2ff; --good: #57c26f; --bad: #ff7b72; --warn: #e0a83c; --panel: #1c2228; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
a { color: var(--link); }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.good { color: var(--good); }
.bad, .critical { color: var(--bad); font-weight: 600; }
.warning { color: var(--warn); font-weight: 600; }
td span { white-space: nowrap; }
ul.problems { margin: .75rem 0; padding: .6rem .9rem .6rem 2rem; background: var(--panel);
  border-left: 4px solid var(--bad); overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem; white-space: nowrap; }
td:first-child { min-width: 9rem; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
pre { padding: .75rem; background: var(--panel); white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, monospace; }
figure { margin: .5rem 0; max-width: 44rem; }
.plot { display: block; width: 100%; height: auto; background: var(--panel); }
.plot polyline { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.plot polyline.committed { stroke: var(--bad); stroke-width: 2; }
.plot polyline.log-start { stroke-dasharray: 4 3; }
.plot line { stroke: var(--warn); stroke-dasharray: 2 2; }
.plot text { fill: var(--soft); font: 11px system-ui, sans-serif; }
figcaption { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .85rem; color: var(--soft); }
.key::before { content: ""; display: inline-block; width: 1.5em; margin-right: .4em; vertical-align: middle;
  border-top: 2px solid var(--soft); }
.key.committed::before { border-color: var(--bad); }
.key.log-start::before { border-top-style: dashed; }
@media (max-width: 44rem) {
  thead { position: absolute; left: -9999px; }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td { display: flex; gap: .75rem; border: 0; padding: .1rem 0; text-align: left; min-width: 0; }
  td.number { text-align: left; white-space: normal; }
  td::before { content: attr(data-label); flex: 0 0 7.5rem; color: var(--soft); }
  td:empty { display: none; }
}
"""

ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    b'<path d="M14 8H3M8 3 3 8l5 5" fill="none" stroke="#c2410c" stroke-width="2.5"/></svg>'
)
"""An arrow that points backwards."""
