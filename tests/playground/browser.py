# SPDX-License-Identifier: MIT-0
# browser - a headless Chromium, spoken to by its DevTools protocol over two pipes: no socket, no library.
#
#     with Browser("chromium") as b:
#         b.open("file:///...")
#         b.eval("document.title")

import base64
import json
import os
import shutil
import subprocess
import struct
import tempfile
import time
import zlib


class Browser:
    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="dpar.")
        to_it, mine = os.pipe()
        theirs, from_it = os.pipe()
        own = mine, theirs

        def pipes():  # DevTools reads 3 and writes 4; both may be among these four
            a, b = os.dup(to_it), os.dup(from_it)
            while a < 5:
                a = os.dup(a)
            while b < 5:
                b = os.dup(b)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--disable-extensions", "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--user-data-dir=" + self.folder, "about:blank"],
            preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_it)
        os.close(from_it)
        self.write, self.read = own
        self.rest, self.number, self.session, self.problems = b"", 0, None, []
        target = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"][0]
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        os.close(self.write)
        os.close(self.read)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has gone")
            self.rest += more
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        os.write(self.write, json.dumps(question).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("id") == self.number:
                if "error" in m:
                    raise RuntimeError(method + ": " + m["error"]["message"])
                return m["result"]
            if m.get("method") == "Runtime.exceptionThrown":
                d = m["params"]["exceptionDetails"]
                self.problems.append(d.get("exception", {}).get("description", d["text"]))
            if m.get("method") == "Log.entryAdded" and m["params"]["entry"]["level"] == "error":
                self.problems.append(m["params"]["entry"]["text"])

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"].get("exception", {}).get("description", "?"))
        return r["result"].get("value")

    def until(self, expression, limit=20):
        end = time.time() + limit
        while not self.eval(expression):
            if time.time() > end:
                raise RuntimeError("after %g s still not: %s" % (limit, expression))
            time.sleep(0.005)

    def open(self, address):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def size(self, width, height, dark=False, dense=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=dense, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])

    def key(self, name, shift=False):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13, "Home": 36, "End": 35, " ": 32}
        for kind in "keyDown", "keyUp":
            more = {"text": name} if name == " " and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code="Space" if name == " " else name,
                      windowsVirtualKeyCode=codes[name], modifiers=8 if shift else 0, **more)

    def picture(self, file, height=None):
        clip = {}
        if height:
            width = self.eval("innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        with open(file, "wb") as f:
            f.write(indexed(base64.b64decode(data)))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# A PNG of 8 bits a channel with at most 256 colours, the most frequent ones: half the bytes or less.
def indexed(png):
    at, packed = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            wide, high, depth, colour = struct.unpack(">IIBB", png[at + 8:at + 18])
        packed += png[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    n = {2: 3, 6: 4}[colour]
    raw, above, pixels = zlib.decompress(packed), bytearray(wide * n), []
    for y in range(high):
        start = y * (wide * n + 1)
        way, row = raw[start], bytearray(raw[start + 1:start + 1 + wide * n])
        for i in range(len(row)):
            a, b, c = (row[i - n] if i >= n else 0), above[i], (above[i - n] if i >= n else 0)
            if way == 1:
                row[i] = (row[i] + a) & 255
            elif way == 2:
                row[i] = (row[i] + b) & 255
            elif way == 3:
                row[i] = (row[i] + (a + b) // 2) & 255
            elif way == 4:
                pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                row[i] = (row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        above = row
        pixels += [bytes(row[i:i + 3]) for i in range(0, len(row), n)]
    often = {}
    for p in pixels:
        often[p] = often.get(p, 0) + 1
    table = sorted(often, key=lambda p: (-often[p], p))[:256]
    index = {p: k for k, p in enumerate(table)}
    for p in often:
        if p not in index:
            index[p] = min(range(len(table)), key=lambda k: sum((x - y) ** 2 for x, y in zip(table[k], p)))
    rows = b"".join(b"\0" + bytes(index[p] for p in pixels[y * wide:(y + 1) * wide]) for y in range(high))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 3, 0, 0, 0)) +
            chunk(b"PLTE", b"".join(table)) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
