"""The web page's style sheet as one string: dark and light, 375 px and wider, no external file."""

from typing import Final

CSS: Final = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#60646c;--line:#d9d9e0;--card:#f7f7f9;--page:#fff;--warn:#9a4a00;
--bad:#b3261e;--link:#0b57d0;--good:#1a6b34}
@media(prefers-color-scheme:dark){:root{--text:#edeef0;--soft:#b0b4ba;--line:#3a3f45;--card:#1b1d20;--page:#111214;
--warn:#ffb224;--bad:#ff8f87;--link:#8ab4f8;--good:#7fd99a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:80rem;padding:1rem;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
a{color:var(--link)}a:focus-visible,button:focus-visible,input:focus-visible{outline:3px solid var(--link);
outline-offset:2px}
nav{display:flex;gap:1rem;flex-wrap:wrap;align-items:center;border-bottom:1px solid var(--line);padding-bottom:.5rem}
nav b{margin-right:auto}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
h1{font-size:1.4rem;margin:1rem 0 .2rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
p,li{margin:.3rem 0}ul{padding-left:1.2rem}.soft{color:var(--soft);font-size:.9rem}.warn{color:var(--warn)}
.bad{color:var(--bad)}.good{color:var(--good)}
.numbers{display:grid;gap:.6rem;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));margin:1rem 0}
.numbers div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.numbers b{display:block;font-size:1.15rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{padding:.35rem .5rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600}
th:first-child,td:first-child,td.left,th.left{text-align:left}td:first-child{white-space:normal;min-width:8rem}td.long{white-space:normal;min-width:12rem;text-align:left}
button{font:inherit;padding:.35rem .8rem;min-height:2.2rem;border:1px solid var(--line);border-radius:.4rem;
background:var(--card);color:var(--text);cursor:pointer}
input{font:inherit;padding:.35rem .6rem;border:1px solid var(--line);border-radius:.4rem;background:var(--page);
color:var(--text);max-width:100%}
form.in{display:inline}form.sign{max-width:24rem;margin:3rem auto;display:grid;gap:.8rem}
@media(max-width:34rem){nav{gap:.5rem;font-size:.9rem}nav button{padding:.35rem .4rem}
table.stack,table.stack tbody,table.stack tr,table.stack td{display:block;width:100%}
table.stack thead{position:absolute;left:-99rem}
table.stack tr{border:1px solid var(--line);border-radius:.5rem;margin:.6rem 0;padding:.4rem .6rem}
table.stack td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.15rem 0;white-space:normal}
table.stack td::before{content:attr(data-name);color:var(--soft)}}
"""
