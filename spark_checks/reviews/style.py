"""The style sheet of the page: narrow first, light or dark as the reader's device is."""

STYLE = """
:root{--ink:#1d2733;--soft:#5b6775;--line:#dfe4ea;--back:#f6f7f9;--card:#fff;--red:#c62828;--amber:#b45f06;
--green:#2e7d32;--blue:#1565c0;--redback:#fdecea;--amberback:#fff4e0;--greenback:#e8f5e9;--old:#b8c4d1;--oldred:#e3a9a5}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaef;--soft:#9aa7b5;--line:#2d3742;--back:#12171d;--card:#1a2129;
--red:#ef7a72;--amber:#f0b25a;--green:#7cc47f;--blue:#72aef0;--redback:#3a1d1c;--amberback:#38290f;
--greenback:#173020;--old:#46535f;--oldred:#6b3b38}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
main{max-width:960px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 2px}
h2{font-size:1.15rem;margin:0 0 4px}
h3{font-size:1rem;margin:0}
p{margin:0 0 10px}
a{color:var(--blue);text-decoration:none}
code{font:.88em ui-monospace,"DejaVu Sans Mono",monospace;background:var(--back);border-radius:4px;padding:1px 4px}
section,.tiles{margin-top:18px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px}
.soft{color:var(--soft)}
.small{font-size:.88rem}
.verdict{border-radius:10px;padding:12px 16px;margin-top:14px;font-weight:600;background:var(--greenback);
color:var(--green)}
.verdict.warning{background:var(--amberback);color:var(--amber)}
.verdict.critical{background:var(--redback);color:var(--red)}
.do{border-left:3px solid var(--blue);padding-left:10px;margin:6px 0 12px}
ol.tasks{list-style:none;counter-reset:task;margin:8px 0 0;padding:0}
ol.tasks li{counter-increment:task;position:relative;padding:10px 0 10px 40px;border-top:1px solid var(--line)}
ol.tasks li:first-child{border-top:0}
ol.tasks li::before{content:counter(task);position:absolute;left:0;top:12px;width:26px;height:26px;border-radius:50%;
background:var(--blue);color:var(--card);text-align:center;font-weight:700;font-size:.88rem;line-height:26px}
ol.tasks p{margin:2px 0 0}
.tiles+p{margin-top:8px}
th{overflow-wrap:normal}
.tiles{display:grid;grid-template-columns:repeat(2,1fr);gap:10px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 12px}
.tile b{display:block;font-size:1.5rem;line-height:1.2}
.tile.critical b{color:var(--red)}
.tile.warning b{color:var(--amber)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.82rem;vertical-align:bottom}
th,td{padding:6px 18px 6px 0;border-bottom:1px solid var(--line)}
td{vertical-align:top}
td:first-child{min-width:9em}
.scroll+h3,div+h3{margin-top:14px}
.scroll+p{margin-top:8px}
tr:last-child td{border-bottom:0}
.n{text-align:right;white-space:nowrap}
.nowrap{white-space:nowrap}
.badge{display:inline-block;border-radius:99px;padding:0 8px;font-size:.8rem;font-weight:600;white-space:nowrap}
.badge.critical{background:var(--redback);color:var(--red)}
.badge.warning{background:var(--amberback);color:var(--amber)}
.badge.good{background:var(--greenback);color:var(--green)}
.up{color:var(--red)}
.down{color:var(--green)}
.bar{display:block;height:8px;border-radius:4px;background:var(--line);min-width:80px;margin-top:8px}
.bar i{display:block;height:8px;border-radius:4px;background:var(--amber)}
.bar.critical i{background:var(--red)}
.bar.good i{background:var(--green)}
svg{display:block;max-width:100%}
svg text{fill:var(--soft);font-size:11px}
details summary{cursor:pointer;color:var(--blue);margin-top:8px}
.wide{display:none}
@media (min-width:700px){.tiles{grid-template-columns:repeat(3,1fr)}.wide{display:table-cell}main{padding-top:32px}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
"""
