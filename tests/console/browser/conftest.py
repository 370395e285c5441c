"""A real browser, Debian's chromium, and real servers as processes: a broker, a name server and a console.

Every page that is checked leaves a picture in `build/console-pictures`, or the folder that `PYROMQ_PICTURES` names.
"""

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.console.browser.shop import open_shop

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")
webdriver = pytest.importorskip("selenium.webdriver")
axe_selenium = pytest.importorskip("axe_selenium_python")

PICTURES = Path(os.environ.get("PYROMQ_PICTURES") or Path(__file__).parents[3] / "build" / "console-pictures")
MAX_PIXELS = 3000  # of a picture's height
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def pytest_collection_modifyitems(items):
    lacking = "no chromium with its driver: apt-get install chromium chromium-driver"
    for item in items:
        if "/console/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None or DRIVER is None:
                item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture(scope="module")
def chromium():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    driver.implicitly_wait(20)
    yield driver
    driver.quit()


class Page:
    """What tests do in the browser."""

    def __init__(self, driver, base):
        self.driver, self.base = driver, base

    def open(self, path, *, width=1360, dark=False):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get(self.base + path)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def fill(self, **fields):
        for name, text in fields.items():
            field = self.find(f"main [name={name}]:not([type=hidden])")
            field.clear()
            field.send_keys(text)

    def press(self, text):
        self.driver.find_element("xpath", f"//main//button[normalize-space()='{text}']").click()

    def confirm(self):
        """Say yes to the question that a change asks."""
        self.driver.switch_to.alert.accept()

    def picture(self, name, *, most=MAX_PIXELS, scale=1):
        """Keep what is shown, all of the page, as a PNG file."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": scale}
        options = {"clip": clip, "captureBeyondViewport": True}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(data))

    @property
    def text(self):
        return self.driver.execute_script("return document.body ? document.body.innerText : ''")

    def run_scripts(self, wanted):
        """Let pages opened from now on run their script, or not."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not wanted})

    @property
    def is_too_wide(self):
        return self.driver.execute_script(
            "const root = document.documentElement; return root.scrollWidth > root.clientWidth + 1"
        )

    @property
    def scrolling(self):
        """The ids or classes of parts that scroll sideways inside of the page."""
        return self.driver.execute_script(
            "return [...document.querySelectorAll('main .scroll, main .card')]"
            ".filter((each) => each.scrollWidth > each.clientWidth + 1)"
            ".map((each) => `${each.scrollWidth - each.clientWidth} px: ${each.id || each.innerText.slice(0, 80)}`)"
        )

    def serious(self):
        """What axe finds to be serious or worse."""
        axe = axe_selenium.Axe(self.driver)
        axe.inject()
        found = axe.run()["violations"]
        return [
            (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary", "")[:300])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def complaints(self):
        """What the browser itself complains about: blocked scripts, missing files, errors of the script."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]


def name_of(path, *, width=1360, dark=False):
    """Return the name of a page's picture."""
    words = re.sub(r"[^\w-]+", "-", path).strip("-") or "overview"
    return words + ("-dark" if dark else "") + ("-narrow" if width < 600 else "")


@contextmanager
def serving(folder, *arguments):
    """Run `pyromq serve --console`; give its process, the console's address and the name server's."""
    command = [sys.executable, "-m", "pyromq", "serve", "--data", str(folder), "--console"]
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--console-port", "0"]
    process = subprocess.Popen([*command, *ports, *arguments], stdout=subprocess.PIPE, text=True)
    found = {}
    for line in process.stdout:
        words = line.split()
        found[words[0]] = words
        if words[0] == "console":
            break
    try:
        yield process, found["console"][1].rstrip("/"), found["name"][2]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("servers")) as (_, base, namesrv), open_shop(namesrv):
        yield base, namesrv


@pytest.fixture
def page(chromium, servers):
    chromium.delete_all_cookies()
    chromium.get_log("browser")
    return Page(chromium, servers[0])


os.environ.setdefault("SE_AVOID_STATS", "true")  # selenium tells nobody
