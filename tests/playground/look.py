# SPDX-License-Identifier: MIT-0
# look - docs/playground/index.html in a headless Chromium: is what it shows what the library says, can one use it?
#
#     python3 tests/playground/look.py CHROMIUM ORACLE           the tests, a line each
#     python3 tests/playground/look.py CHROMIUM pictures FOLDER  the pictures of docs/playground
#
# ORACLE: tests/playground/oracle.c, compiled. PAGE: another file than docs/playground/index.html. DPAR_PARTS: of the
# tests these alone.

import math
import os
import random
import re
import subprocess
import sys
import time
from urllib.parse import quote

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser  # noqa: E402

# Milliseconds until the first picture, and those that the page may stand still while it searches, in the best of some
# tries. These limits are kept at night; a push has looser ones, since its machine is shared.
whole = os.environ.get("DPAR_PARTS_OF", "1") == "1"
most_first, most_gap, tries = (500, 300, 5) if whole else (1000, 1500, 3)
page = "file://" + os.path.abspath(os.environ.get("PAGE", "docs/playground/index.html"))
bad = []


def expect(true, *what):
    if not true:
        bad.append(" ".join(str(w) for w in what))


# ---- settings drawn at random; all keys, so that the oracle needs no defaults ----

models = ["llama-3-8b", "llama-3-70b", "gpt3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "vit-h", "t5-11b", "resnet-50",
          "unet-0.25deg", "weather-0.25deg", "deepseek-v2", "llama-3-8b,layers=40", "gpt:layers=24,hidden=2048,heads=16,vocab=51200,seq=2048"]
machines = ["dgx-a100", "dgx-h100", "derecho", "dgx-b200", "frontier", "8x8:a100-80", "4x8:h100-80,nvlink=450,nic=8x50"]
orders = ["gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-2p", "zbv", "v-half", "v-min", "dualpipe", "dualpipev",
          "eager-1f1b", "interleaved-zb", "1f1b-v", "moe-overlap", "seq1f1b", "chimera", "forward-only"]
rules = ["chunk", "even", "floor", "block-cyclic", "strided", "zigzag", "stripe"]


def plan(r):
    s = {"model": r.choice(models), "machine": r.choice(machines), "gpus": r.choice([8, 16, 32, 64, 128, 100]),
         "batch": r.choice([64, 128, 256, 512, 7]), "precision": r.choice(["", "fp32", "fsdp", "fp8", "adam8"])}
    if r.random() < .25:
        s.update({"search": "one", "strategy": r.choice(["tp=8,pp=2,mbs=1", "tp=4,zero=3", "pp=4,m=32", "tp=3", "zero=1,recompute=full"])})
    elif r.random() < .4:
        s["fix"] = r.choice(["tp=2", "tp=8,pp=2", "zero=1", "tp=8,pq=2", "recompute=full"])
    if r.random() < .3:
        s["seq"] = r.choice([1024, 4096, 32768])
    return s


def pipeline(r):
    t = lambda least: "%g" % (r.randint(least, 30) / 10)
    return {"schedule": r.choice(orders), "ranks": r.randint(1, 12), "micro": r.randint(1, 32), "stages": r.choice([1, 2, 3, 4, 6]),
            "slices": r.choice([2, 3, 4]), "forward": t(1), "input": t(1), "weight": t(0), "message": "%g" % (r.choice([0, 0, 5, 25]) / 100)}


def layout(r):
    rows, columns = r.randint(1, 24), r.randint(1, 24)
    a, b = sorted(r.randint(0, rows - 1) for i in range(2)), sorted(r.randint(0, columns - 1) for i in range(2))
    if a[0] == a[1] and b[0] == b[1]:
        a, b = [0, rows - 1], [0, columns - 1]
    s = {"rows": rows, "columns": columns, "order": r.choice(["last", "first"]), "rank": 0, "paint": "%d,%d,%d,%d" % (a[0], b[0], a[1], b[1])}
    for i in range(3):
        s.update({"size%d" % i: r.randint(1, 4), "how%d" % i: r.choice(["replicate", "rows", "columns", "rows", "columns"]),
                  "rule%d" % i: r.choice(rules), "block%d" % i: r.randint(1, 3)})
    return s


def halo(r):
    ranks = r.choice([1, 2, 3, 4, 6, 8, 9, 12, 16, 24])
    return {"cells": "%dx%d" % (r.randint(24, 64), r.randint(24, 64)), "ranks": ranks, "node": r.choice([1, 2, 3, 4, 8]),
            "cut": r.choice(["least", "placed", "mpi"]), "halo": r.randint(0, 3), "bytes": r.choice([4, 8, 40]),
            "round": r.choice(["", "0", "1", "01"]), "corners": r.choice(["", "y"]), "rank": r.randrange(ranks)}


def drawn(n, seed):
    r = random.Random(seed)
    kinds = [plan, pipeline, layout, halo, plan]
    return [(kinds[i % 5].__name__, kinds[i % 5](r)) for i in range(n)]


# ---- the page against the oracle ----

def ask(b, link):
    b.eval("performance.clearMarks('answered'); location.hash = %r" % link)
    b.until("performance.getEntriesByName('answered').length > 0")


def shown(b, view):
    return b.eval("Array.from(document.querySelectorAll('#panel-%s [data-name]')).map(e =>"
                  " [e.dataset.name, e.dataset.value === undefined ? e.textContent : e.dataset.value, e.textContent])" % view)


# The text is the value rounded: its first number, with a unit that scales it by a power of ten.
def rounded(value, text):
    m = re.search(r"-?[\d,]*\.?\d+", text)
    if not m:
        return False
    x = float(m.group().replace(",", ""))
    if value == 0 or x == 0:
        return abs(value) < 1e-2 or abs(x) < 1e-2 and abs(value) < 1e-2
    places = len(m.group().split(".")[1]) if "." in m.group() else 0
    return any(abs(value / 10.0 ** e - x) <= .5001 * 10.0 ** -places for e in (0, 3, 6, 9, 12, 15, 18, -2, -3, -6))


def same(b, oracle, settings):
    links = [v + " " + " ".join("%s=%s" % (k, x) for k, x in s.items() if x != "") for v, s in settings]
    said = subprocess.run([oracle], input="\n".join(links) + "\n", capture_output=True, text=True, check=True).stdout
    answers, compared, refused = said.split("\n.\n"), 0, 0
    answers = [a.strip(".\n") if a.strip() == "." else a for a in answers]
    for (view, s), link, answer in zip(settings, links, answers):
        ask(b, "#" + view + "".join("&%s=%s" % (k, quote(str(x), safe=",:=")) for k, x in s.items()))
        on_page = shown(b, view)
        values = {n: (v, t) for n, v, t in on_page}
        why = b.eval("document.getElementById('error-%s').hidden ? '' : document.getElementById('error-%s').innerText" % (view, view))
        for line in answer.split("\n"):
            name, _, value = line.partition(" ")
            if name in ("", "."):
                continue
            compared += 1
            if name == "why":
                refused += 1
                expect(value in why, link, "- the page says", repr(why), "the library", repr(value))
            elif name.endswith(".why"):
                expect(values.get(name, ("", ""))[1] == value, link, name, "- the page says", values.get(name), "the library", repr(value))
            else:
                v, text = values.get(name, ("nan", ""))
                expect(math.isclose(float(v), float(value), rel_tol=1e-12, abs_tol=1e-15), link, name, "- the page has", v, "the library", value)
                # a sentence has more than one number: "Rank 0 holds ..."
                expect(name == "rank.elements" or rounded(float(value), text), link, name, "- the page shows", repr(text), "for", value)
        if view in ("layout", "halo") and not why:
            extra = [n for n, v, t in on_page if re.match(r"(held|received|sent)\d", n) and n + " " not in "\n" + answer and "\n" + n + " " not in "\n" + answer]
            expect(not extra, link, "- only on the page:", extra)
    print("%d settings: %d values equal the library's, %d refused in its words" % (len(settings), compared - refused, refused))


# ---- can one use it ----

names = """(() => {
  const seen = (e) => e.checkVisibility ? e.checkVisibility() : e.offsetParent !== null;
  const name = (e) => e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') || '').split(' ').map(i => i && document.getElementById(i) ? document.getElementById(i).textContent : '').join(' ').trim()
    || Array.from(e.labels || []).map(l => l.textContent).join(' ').trim() || (['BUTTON', 'A', 'SUMMARY'].includes(e.tagName) ? e.textContent.trim() : '') || (e.querySelector && e.querySelector('title') ? e.querySelector('title').textContent : '');
  const bad = [];
  for (const e of document.querySelectorAll('button, a, input, select, textarea, canvas, summary, progress, [tabindex], [role=img], [role=radiogroup], [role=tablist], [role=tabpanel], [role=application], [role=radio], [role=tab]')) {
    if (seen(e) && !name(e)) { bad.push('no name: ' + e.outerHTML.slice(0, 120)); }
  }
  const ids = Array.from(document.querySelectorAll('[id]')).map(e => e.id);
  for (const i of ids) { if (ids.indexOf(i) !== ids.lastIndexOf(i)) { bad.push('id twice: ' + i); } }
  for (const e of document.querySelectorAll('[aria-labelledby], [aria-controls], [aria-describedby], label[for]')) {
    for (const a of ['aria-labelledby', 'aria-controls', 'aria-describedby', 'for']) {
      for (const i of (e.getAttribute(a) || '').split(' ')) { if (i && !document.getElementById(i)) { bad.push(a + ' of nothing: ' + i); } }
    }
  }
  for (const g of document.querySelectorAll('[role=radiogroup]')) {
    if (seen(g) && g.querySelectorAll('[role=radio]').length && g.querySelectorAll('[role=radio][aria-checked=true]').length !== 1) { bad.push('a group without one choice: ' + g.id); }
  }
  for (const t of document.querySelectorAll('table')) { if (seen(t) && t.rows.length > 1 && !t.querySelector('th')) { bad.push('a table without headers: ' + t.id); } }
  if (!document.documentElement.lang) { bad.push('no language'); }
  const levels = Array.from(document.querySelectorAll('h1, h2, h3')).filter(seen).map(h => Number(h.tagName[1]));
  levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) { bad.push('a heading skips a level'); } });
  return bad;
})()"""

# WCAG's contrast of each text with what is behind it
contrast = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (s) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = s; canvas.fillRect(0, 0, 1, 1); return Array.from(canvas.getImageData(0, 0, 1, 1).data); };
  const light = (c) => { const f = c.slice(0, 3).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : Math.pow((v + .055) / 1.055, 2.4); }); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 200) { return c; } } return rgba('white'); };
  const bad = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !e.checkVisibility() || e.closest('.unseen, script, style, option, svg') || e.disabled) { continue; }
    const a = light(rgba(getComputedStyle(e).color)), b = light(behind(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) { bad.add(ratio.toFixed(2) + ' ' + walk.currentNode.textContent.trim().slice(0, 30)); }
  }
  return Array.from(bad);
})()"""

views = ["plan", "pipeline", "layout", "halo"]


def first_picture(b):
    times = []
    for i in range(tries):
        b.open(page + "#plan")
        b.until("performance.getEntriesByName('picture').length > 0")
        times.append(b.eval("performance.getEntriesByName('picture')[0].startTime"))
    expect(min(times) <= most_first, "the first picture after", min(times), "ms, of", most_first)
    print("first picture after %s ms, of %d" % (", ".join("%.0f" % t for t in times), most_first))


def accessible(b):
    n = 0
    for dark in False, True:
        b.size(1280, 900, dark)
        for v in views:
            ask(b, "#" + v + "&rank=1")
            for what in b.eval(names) + b.eval(contrast):
                expect(False, v, "dark" if dark else "light", what)
            n += b.eval("document.querySelectorAll('#panel-%s :is(input, select, button, canvas, [tabindex])').length" % v)
    print("%d controls have names, texts have contrast, light and dark" % (n // 2))


def narrow(b):
    for width in 320, 390, 768:
        b.size(width, 844)
        for v in views:
            ask(b, "#" + v + "&rank=%d" % (width % 3))
            wide = b.eval("document.documentElement.scrollWidth")
            expect(wide <= width, v, "is", wide, "wide on", width)
            cut = b.eval("""Array.from(document.querySelectorAll('#panel-%s :is(label, th, dt, dd, button, .key, .say)')).filter(e => e.checkVisibility() && !e.closest('.unseen, details') &&
              (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' && e.clientWidth > 0 || e.getBoundingClientRect().right > innerWidth + 1)).map(e => e.textContent.slice(0, 40))""" % v)
            expect(not cut, v, "at", width, "cuts", cut)
    b.size(1280, 900)
    print("no scrolling sideways, nothing cut at 320, 390, 768")


def keyboard(b):
    ask(b, "#plan&model=llama-3-8b")
    b.eval("document.getElementById('tab-plan').focus()")
    b.key("ArrowRight")
    expect(b.eval("document.activeElement.id") == "tab-pipeline" and b.eval("location.hash") == "#pipeline", "arrows do not move from tab to tab")
    b.key("Tab")
    expect(b.eval("document.activeElement.id") == "pipeline-schedule", "Tab does not lead into the panel")
    b.eval("performance.clearMarks('answered'); document.getElementById('pipeline-ranks-slide').focus()")
    b.key("ArrowRight")
    b.until("performance.getEntriesByName('answered').length > 0")
    expect(b.eval("location.hash") == "#pipeline&ranks=5", "a slider does not hear arrows:", b.eval("location.hash"))
    b.eval("document.getElementById('gantt').focus()")
    for k in "ArrowRight", "ArrowRight", "ArrowDown":
        b.key(k)
    expect(b.eval("document.getElementById('slice').textContent").startswith("Rank 1: forward"), "the chart does not hear arrows")
    ask(b, "#layout")
    b.eval("document.querySelector('#array svg').focus()")
    b.key("ArrowRight")
    b.key("ArrowRight", shift=True)
    b.key("ArrowDown", shift=True)
    expect("4 elements" in b.eval("document.getElementById('say-paint').textContent"), "keys do not paint:", b.eval("document.getElementById('say-paint').textContent"))
    ask(b, "#halo&rank=0")
    b.eval("document.querySelector('#blocks [tabindex=\"0\"]').focus()")
    b.key("ArrowDown")
    b.until("location.hash.includes('rank=4')", 5)
    ask(b, "#plan&model=llama-3-8b")
    b.eval("document.querySelector('#plans input:checked').focus()")
    b.key("ArrowDown")
    b.until("location.hash.includes('show=1')", 5)
    hash_ = b.eval("location.hash")
    b.open(page + hash_)
    b.until("performance.getEntriesByName('answered').length > 0")
    expect(b.eval("document.querySelector('#plans .on').dataset.plan") == "1", "a link does not show what one saw")
    print("tabs, sliders, chart, painting, blocks and plans by keyboard; the link shows what one saw")


# What nobody should write: a picture or a sentence, and no exception.
hostile = ["nothing", "plan&=&=&", "plan&gpus=-1", "plan&gpus=1e9", "plan&gpus=abc", "plan&model=", "plan&model=%%%", "plan&model=a%20b%20fix=tp=2",
           "plan&machine=0x0:h100-80", "plan&seq=99999999999999", "plan&batch=0", "plan&show=-5", "plan&show=1e9", "plan&fix=tp", "plan&search=one&strategy=",
           "plan&gpus=65536&batch=1048576", "pipeline&ranks=0", "pipeline&ranks=99999&micro=99999", "pipeline&ranks=32&micro=65535", "pipeline&schedule=x",
           "pipeline&forward=0&input=0&weight=0", "pipeline&forward=-1", "pipeline&forward=1e300", "pipeline&schedule=interleaved&stages=64&ranks=32", "pipeline&stages=0",
           "layout&rows=0", "layout&rows=1e9&columns=1e9", "layout&size0=0", "layout&size0=8&size1=8&size2=8", "layout&size0=99999", "layout&rule1=strided&block1=1e300",
           "layout&rule1=block-cyclic&block1=-3", "layout&paint=9,9", "layout&paint=99,99,0,0", "layout&rank=99", "halo&cells=", "halo&cells=0x0", "halo&cells=5x5&ranks=64",
           "halo&cells=1000000000x1000000000x1000000000&bytes=1000000000", "halo&ranks=1000000", "halo&ranks=0", "halo&node=0", "halo&cut=own&parts=3", "halo&cut=own&parts=0x4",
           "halo&cut=own&parts=99999x99999", "halo&halo=99", "halo&cells=3x3&ranks=9&halo=8&round=01&corners=y", "halo&rank=-1", "halo&rank=99999", "halo&cells=7"]


def refuses(b):
    said = 0
    for link in hostile:
        try:
            ask(b, "#" + link)
        except RuntimeError as e:
            expect(False, link, e)
            continue
        view = link.split("&")[0] if link.split("&")[0] in views else "plan"
        error = b.eval("document.getElementById('error-%s').innerText" % view)
        said += error != ""
        expect(error or b.eval("document.getElementById('say-%s').textContent" % view), link, "says nothing")
        expect("NaN" not in b.eval("document.querySelector('#panel-%s .results').innerText" % view) or "NaN" in link, link, "shows NaN")
        if b.problems:
            expect(False, link, b.problems)
            b.problems.clear()
    print("%d links that nobody should write: %d refused in words, none breaks the page" % (len(hostile), said))


def without_workers(b):
    script = b.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.Worker")["identifier"]
    b.open(page + "#plan")
    b.until("performance.getEntriesByName('answered').length > 0")
    expect("fastest of" in b.eval("document.getElementById('say-plan').textContent"), "without workers:", b.eval("document.body.innerText.slice(0, 300)"))
    b.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    print("works without workers, too")


def searches(b):
    ask(b, "#plan&model=llama-3-8b")
    began = time.time()
    b.eval("""window.gaps = [0]; window.last = performance.now();
      window.tick = () => { const t = performance.now(); gaps.push(t - last); last = t; requestAnimationFrame(tick); }; tick();
      location.hash = '#plan&model=llama-3-70b&machine=selene&gpus=1536&batch=1536&search=whole'""")
    b.until("Number(document.querySelector('#progress-plan progress').value) > 0 || performance.getEntriesByName('answered').length > 1", 20)
    rounds = []
    while time.time() - began < 2.5:
        t = time.time()
        b.eval("document.getElementById('walked').textContent")
        rounds.append(time.time() - t)
    walked = b.eval("document.getElementById('walked').textContent")
    b.eval("document.getElementById('say-pipeline').textContent = ''; document.getElementById('tab-pipeline').click()")
    began = time.time()
    b.until("document.getElementById('say-pipeline').textContent.startsWith('zb-h1')", 5)
    other = time.time() - began
    gap = b.eval("Math.max(...gaps)")
    amount = float(walked.split()[0].rstrip("kMG")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(walked.split()[0][-1], 1)
    expect(amount >= 1e5, "searched only", walked)
    expect(other < 2, "another view answered after", other, "s")
    b.eval("performance.clearMarks('answered'); document.getElementById('tab-plan').click(); document.getElementById('stop').click()")
    b.until("performance.getEntriesByName('answered').length > 0")
    b.until("document.getElementById('error-plan').innerText.includes('the best plans so far')")
    expect(b.eval("document.querySelectorAll('#plans tbody').length") == 8, "a search that was stopped shows nothing")
    print("a search of %s meanwhile: the page's longest pause %.0f ms, of %d, another view answered in %.0f ms" %
          (walked.split(",")[0], gap, most_gap, 1000 * other))
    return gap


def keeps_answering(b):
    best = searches(b)
    for i in range(1, tries):
        best = best if best <= most_gap else min(best, searches(b))
    expect(best <= most_gap, "the page stood still for", best, "ms, of", most_gap)


def sizes():
    n = os.path.getsize(page[7:])
    text = open(page[7:], encoding="utf-8").read()
    expect(n <= 400000, "the page has", n, "bytes")
    expect(not re.search(r"(src|href)=.?https?:|fetch\(|XMLHttpRequest|import\(|@import|url\(http", text), "the page loads something")
    print("%d bytes, nothing else is loaded" % n)


def pictures(program, folder):
    with Browser(program) as b:
        for name, link, width, height, dark in (("light", "#plan", 1100, 900, False), ("dark", "#pipeline&schedule=interleaved&ranks=4&micro=8", 1100, 800, True),
                                                ("narrow", "#halo&round=1", 390, 1060, False), ("layouts", "#layout&size0=2", 1100, 700, False)):
            b.size(width, height, dark)
            b.open(page + link)
            b.until("performance.getEntriesByName('answered').length > 0")
            time.sleep(.3)
            b.picture(os.path.join(folder, name + ".png"))
            print(name, os.path.getsize(os.path.join(folder, name + ".png")))


def tests(program, oracle):
    sizes()
    with Browser(program) as b:
        b.size(1280, 900)
        b.open(page)
        b.until("performance.getEntriesByName('answered').length > 0")
        for part in os.environ.get("DPAR_PARTS", "first same names narrow keyboard refuses workers answering").split():
            {"first": first_picture, "same": lambda b: same(b, oracle, drawn(50, 40)), "names": accessible, "narrow": narrow,
             "keyboard": keyboard, "refuses": refuses, "workers": without_workers, "answering": keeps_answering}[part](b)
        expect(not b.problems, "the console says", b.problems)
    for line in bad[:20]:
        print("WRONG", line)
    print("%d wrong" % len(bad))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    if sys.argv[2] == "pictures":
        pictures(sys.argv[1], sys.argv[3])
    else:
        tests(sys.argv[1], sys.argv[2])
