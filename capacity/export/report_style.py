"""The report's style sheet and colours: one column, light and dark on screen, always light on A4 paper."""

from __future__ import annotations

# The memory bill's order and colours, the same as on the page (pages/ui/charts).
MEMORY_COLOURS = {
    "weights": "#0072B2",
    "activation": "#56B4E9",
    "cuda_graphs": "#AA4499",
    "non_torch": "#B8A24A",
    "other": "#7A5C3E",
    "kv_cache": "#009E73",
}
STATE = {
    "yes": ("#009E73", "&#10003;", "Fits"),
    "marginal": ("#E69F00", "!", "Marginal"),
    "no": ("#D55E00", "&#10005;", "Does not fit"),
}

STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--quiet:#57606a;--line:#d5dae0;--soft:#f3f5f7;--info:#0072b2}
@media screen and (prefers-color-scheme:dark){:root{--paper:#0f1419;--ink:#e6eaee;--quiet:#9da7b1;--line:#39434d;
--soft:#1a2129;--info:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:820px;margin:0 auto;padding:32px 24px 56px}
h1{font-size:25px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:17px;margin:34px 0 8px;break-after:avoid}
h3{font-size:14px;margin:18px 0 4px;color:var(--quiet);break-after:avoid}
p{margin:6px 0}.quiet{color:var(--quiet)}
.verdict{display:flex;gap:14px;align-items:flex-start;margin:20px 0;padding:14px 16px;border-left:6px solid;
background:var(--soft);border-radius:4px;font-size:17px;font-weight:600}
.verdict b{flex:none;width:26px;height:26px;border-radius:50%;color:#fff;text-align:center;line-height:26px;font-size:15px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px}
.figures div{border:1px solid var(--line);border-radius:6px;padding:10px 12px}
.figures dt{font-size:12.5px;color:var(--quiet)}
.figures dd{margin:2px 0 0;font-size:24px;line-height:1.2;font-weight:600;font-variant-numeric:tabular-nums}
.figures small{font-size:12.5px;font-weight:400;color:var(--quiet);display:block;margin-top:2px;line-height:1.35}
figure{margin:10px 0 0;break-inside:avoid}svg{width:100%;height:auto;display:block;font-size:12px}
svg text{font-family:inherit}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 0;padding:0;list-style:none;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;border:1px solid var(--line)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px;margin-top:6px}
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:1.5px solid var(--line);padding:4px 12px 4px 0}
td{border-bottom:1px solid var(--line);padding:5px 12px 5px 0;vertical-align:top;overflow-wrap:break-word}
tr{break-inside:avoid}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.src{color:var(--quiet);font-size:12px}table.keys td:nth-child(-n+2){white-space:nowrap}
table.equations{table-layout:fixed}.equations th:nth-child(1){width:20%}.equations th:nth-child(2){width:23%}
.equations th:nth-child(3){width:20%}.equations th:nth-child(4){width:14%}.equations td{overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:12px 14px;margin:8px 0;font:12.5px/1.55
ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;white-space:pre-wrap;overflow-wrap:anywhere;
break-inside:avoid}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
ul{margin:6px 0;padding-left:20px}footer{margin-top:40px;border-top:1px solid var(--line);padding-top:10px;font-size:12.5px}
@media screen and (max-width:640px){main{padding:20px 14px 40px}figure{overflow-x:auto}table,figure svg{min-width:600px}}
@page{size:A4;margin:14mm 13mm}
@media print{body{font-size:11pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}main{padding:0;max-width:none}
.figures{grid-template-columns:repeat(5,1fr);gap:8px}.figures dd{font-size:17pt}.figures div{padding:8px 9px}
.scroll{overflow:visible}
table{font-size:9pt}td.src{font-size:8.5pt}pre,code{font-size:8.5pt}h1{font-size:19pt}h2{margin-top:22px}
footer{margin-top:14px;break-before:avoid}h2+p,p:has(+pre),thead{break-after:avoid}table.plain{break-inside:avoid}p{orphans:3;widows:3}}
"""
