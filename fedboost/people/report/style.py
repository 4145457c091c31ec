"""The style of a report: light, dark, narrow and printed.

Promises: text has a contrast of 4.5 to 1 at least in both schemes; on paper whatever is folded stands open.
Refuses: nothing.
"""

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --panel: #f4f6f8; --ink: #1b2430; --soft: #4a5765; --rule: #c5ced8; --link: #0b57a4;
  --warn: #fff4d6; --warn-rule: #9a6700; --bar: #2f6fb0;
  --s0: #1f6fb5; --s1: #b3470b; --s2: #2b7a2b; --s3: #8a3fb0; --s4: #a01c3a; --s5: #0f7a80; --s6: #6b5a00;
  --s7: #505a66; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12171d; --panel: #1b222a; --ink: #e6ebf0; --soft: #aab6c2; --rule: #3d4a57; --link: #8ec2ff;
  --warn: #33290e; --warn-rule: #e0b040; --bar: #5c9fe0;
  --s0: #6db3f2; --s1: #f59a5c; --s2: #7ccf7c; --s3: #cf9bea; --s4: #f28a9e; --s5: #5fcdd2; --s6: #d9c35a;
  --s7: #b4bfca; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial,
  sans-serif; }
body { max-width: 62rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 2px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p, ul { max-width: 46rem; margin: .5rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none;
  max-width: none; }
.lead, .left-out, footer { color: var(--soft); }
.left-out { border-left: 3px solid var(--rule); padding-left: .75rem; }
.warnings { background: var(--warn); border-left: 4px solid var(--warn-rule);
  padding: .5rem 1rem .5rem 2rem; }
.warnings li { margin: .35rem 0; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; min-width: 18rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
details > .scroll caption { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere; min-width: 4.5rem; }
th[scope=col] { overflow-wrap: break-word; }
th[scope=row] { font-weight: 500; min-width: 6rem; }
.scroll[role=group] td:not(.number) { min-width: 6.5rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal;
  white-space: nowrap; min-width: 0; }
details { margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .15rem 0; }
td details { margin: 0; } td summary { font-weight: 400; }
pre { font-size: .8rem; overflow-x: auto; background: var(--panel); padding: .75rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1rem 2rem; }
figure { margin: .75rem 0; max-width: 34rem; }
.charts figure { margin: 0; }
figcaption { font-weight: 600; font-size: .95rem; overflow-wrap: anywhere; }
.chart { width: 100%; height: auto; display: block; font-size: 12px; }
.chart text { fill: var(--ink); }
.chart .grid { stroke: var(--rule); stroke-width: .6; }
.chart .axis { stroke: var(--soft); }
.chart .faint { stroke: var(--soft); stroke-dasharray: 3 3; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .bar { fill: var(--bar); }
.chart .second { fill: var(--s1); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
.s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); } .s6 { stroke: var(--s6); } .s7 { stroke: var(--s7); }
.dot { fill: var(--paper); stroke-width: 2; }
.tree { max-width: none; }
.tree .scroll { max-height: 36rem; overflow: auto; border: 1px solid var(--rule); background: #ffffff; }
.tree svg { display: block; }
@media (prefers-color-scheme: dark) { .tree .scroll { filter: invert(.93) hue-rotate(180deg); } }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .9rem; }
@media (max-width: 34rem) { html { font-size: 15px; } body { padding: .5rem .75rem 2rem; }
  .chart { font-size: 13.5px; } th, td { padding-right: .6rem; min-width: 3.5rem; } }
@media print {
  :root { color-scheme: light; --paper: #ffffff; --panel: #ffffff; --ink: #000000; --soft: #333333;
    --rule: #999999; --link: #000000; --warn: #ffffff; --warn-rule: #000000; --bar: #55708a; --s0: #1f6fb5;
    --s1: #b3470b; --s2: #2b7a2b; --s3: #8a3fb0; --s4: #a01c3a; --s5: #0f7a80; --s6: #6b5a00;
  --s7: #505a66; }
  @page { margin: 15mm; }
  html { font-size: 10.5pt; }
  body { max-width: none; padding: 0; }
  nav, .skip { display: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  summary { list-style: none; } summary::-webkit-details-marker { display: none; }
  .scroll, pre { overflow: visible !important; max-height: none !important; }
  pre { white-space: pre-wrap; }
  .charts { grid-template-columns: 1fr 1fr; }
  h2, h3, h2 + p, figcaption, caption, summary { break-after: avoid; }
  figure, tr, .warnings li, table:not(:has(tbody tr:nth-child(13))) { break-inside: avoid; }
  thead { display: table-header-group; }
  .tree .scroll { filter: none; border: 0; }
  .tree svg { max-width: 100%; max-height: 220mm; height: auto; }
}
"""
"""The content of the page's only style element."""
