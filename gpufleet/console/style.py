"""The web page's style sheet as one string: dark and light, 375 px and wider, no external file."""

from typing import Final

CSS: Final = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#60646c;--line:#d9d9e0;--card:#f7f7f9;--page:#fff;--warn:#9a4a00;
--bad:#b3261e;--link:#0b57d0;--good:#1a6b34;--s0:#2f6fa8;--s1:#c2571a;--s2:#1f7d3a;--s3:#9a3d86;--s4:#8a6a00;--s5:#0a7a8c;
--s6:#6a4fc4;--s7:#71757c;--gap:#9a9ea6}
@media(prefers-color-scheme:dark){:root{--text:#edeef0;--soft:#b0b4ba;--line:#3a3f45;--card:#1b1d20;--page:#111214;
--warn:#ffb224;--bad:#ff8f87;--link:#8ab4f8;--good:#7fd99a;--s0:#6ea8e0;--s1:#ff9e70;--s2:#5fc97c;--s3:#e07ec4;--s4:#e6c34a;
--s5:#4fc3d9;--s6:#b39dff;--s7:#9aa0a6;--gap:#6c727a}}
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
.switch{border:0;padding:.2rem 0;gap:.4rem}.switch>span{min-width:4.5rem}
.switch a{padding:.25rem .7rem;border:1px solid var(--line);border-radius:1rem;text-decoration:none;color:var(--text)}
.switch a[aria-current]{background:var(--text);color:var(--page);border-color:var(--text)}
.plot,.lane{--side:3.6rem}.plot{display:grid;grid-template-rows:14rem 1.6rem auto;margin:.8rem 0;position:relative}
.lines{grid-area:1/1/2/-1;position:relative}.lines span{position:absolute;left:var(--side);right:0;
border-top:1px solid var(--line)}.lines .zero{border-color:var(--soft)}.lines b{position:absolute;right:100%;
margin-right:.4rem;transform:translateY(-50%);font-weight:400;font-size:.75rem;color:var(--soft);white-space:nowrap;
font-variant-numeric:tabular-nums}
.col{display:contents}
.col input{grid-row:1;width:100%;height:100%;margin:0;padding:0;opacity:0;z-index:1;cursor:pointer}
.bars{grid-row:1;position:relative;margin:0 8%;border-radius:.15rem}.bars i{position:absolute;left:0;right:0;
border-top:1px solid var(--page)}
.s0{background:var(--s0)}.s1{background:var(--s1)}.s2{background:var(--s2)}.s3{background:var(--s3)}
.s4{background:var(--s4)}.s5{background:var(--s5)}.s6{background:var(--s6)}.s7{background:var(--s7)}
.gap,.bars .more{background:repeating-linear-gradient(45deg,var(--gap) 0 1px,transparent 1px 5px)}
.bars .more{height:.8rem}
.col input:checked~.bars{outline:2px solid var(--text);outline-offset:1px}
.col input:focus-visible~.bars{outline:3px solid var(--link)}
.tick{grid-row:2;font-size:.75rem;color:var(--soft);white-space:nowrap;width:0;padding-top:.2rem}
.tick.last{justify-self:end;display:flex;justify-content:flex-end}
.values{grid-area:3/1/4/-1;visibility:hidden;background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.5rem .8rem}.values p{margin:0 0 .3rem}.values>div{display:grid;gap:.1rem 1.5rem;
grid-template-columns:repeat(auto-fill,minmax(min(18rem,100%),1fr))}.values div>span{display:flex;gap:.5rem;
align-items:baseline;font-size:.9rem}.values b{margin-left:auto;white-space:nowrap;font-variant-numeric:tabular-nums}
.values p b{margin:0;white-space:normal}
.values span>i,i.key{flex:none;display:inline-block;width:.8em;height:.8em;border-radius:.2em}
i.key{margin-right:.5em}
.col input:checked~.values{visibility:visible}
@supports selector(:has(*)){.plot:has(.col:hover) input:checked~.values{visibility:hidden}
.plot .col:hover .values.values.values{visibility:visible}.col:hover .bars{background-color:var(--card)}}
.narrow{max-width:44rem}details{margin:.8rem 0}summary{cursor:pointer}
.lane{display:grid;grid-template-columns:var(--side) 1fr;align-items:center;font-size:.8rem;color:var(--soft)}
.lane div{position:relative;height:1.4rem;border-bottom:1px solid var(--line)}.lane i{position:absolute;top:.35rem;
width:.6rem;height:.6rem;margin-left:-.3rem;border-radius:50%;background:var(--link);border:1px solid var(--page)}
.act{display:flex;flex-wrap:wrap;gap:.2rem .6rem;align-items:center;margin:.15rem 0}code{font-size:.9em}
@media(max-width:34rem){.second{display:none}nav{gap:.4rem;font-size:.85rem}.switch{font-size:1rem}
.switch>span{min-width:3.9rem}.switch a{padding:.25rem .5rem}
nav button{padding:.35rem .4rem}
table.stack,table.stack tbody,table.stack tr,table.stack td{display:block;width:100%}
table.stack thead{position:absolute;left:-99rem}
table.stack tr{border:1px solid var(--line);border-radius:.5rem;margin:.6rem 0;padding:.4rem .6rem}
table.stack td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.15rem 0;white-space:normal}
table.stack td::before{content:attr(data-name);color:var(--soft);flex:none}}
"""
