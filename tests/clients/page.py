"""Uses the page of a Paceline server in a headless Chromium, as people do.

    python3 tests/clients/page.py chat http://127.0.0.1:8080          # with --ctx 32768 --draft none
    python3 tests/clients/page.py protection http://127.0.0.1:8080    # with --api-key secret --key-requests 2
    python3 tests/clients/page.py row http://127.0.0.1:8080           # a coordinator; says on its output when to take a shard away
                                                                      # and when to bring one, and waits for a line on its input

With PACELINE_SCREENSHOTS=FOLDER the last leaves the pictures of the documentation there.
"""

import json
import os
import random
import shutil
import sys
import threading
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

QUESTION = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?"
# Only what hangs takes as long.
HANG = 60


class Browser:
    def __init__(self, url):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Containers have little shared memory, and no sandbox for root.
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        for flag in flags + ["--no-sandbox"] * (os.geteuid() == 0):
            options.add_argument(flag)
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.url = url
        self.size(1440, 900)
        self.prefer("light")
        self.open()

    def open(self):
        self.driver.get(self.url + "/")
        self.until(lambda: self.text("#model") or self.shown("#key-form"))

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        """The last element of a kind; answers and questions that count are the last ones."""
        return self.all(selector)[-1]

    def shown(self, selector):
        return any(element.is_displayed() for element in self.all(selector))

    def text(self, selector):
        """Its text, shown or not."""
        return self.script("return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''", selector)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def module(self, text, *arguments):
        """Runs the body of an async function."""
        wrapped = "const done = arguments[arguments.length - 1]; (async (...arguments_) => {" + text + "})(...arguments).then(done, (e) => done(String(e)))"
        return self.driver.execute_async_script(wrapped, *arguments)

    def until(self, holds, what=None):
        """Waits until it holds. What vanishes while it is looked at did not hold yet."""
        def look(_):
            try:
                return holds()
            except (IndexError, StaleElementReferenceException):
                return False
        try:
            return WebDriverWait(self.driver, HANG, poll_frequency=0.05).until(look)
        except TimeoutException as error:
            said = [entry["message"] for entry in self.driver.get_log("browser")]
            raise AssertionError(f"{what or 'it'} does not come: {self.text('body')[-3000:]} {said}") from error

    def press(self, selector, place=-1):
        """Clicks one of a list that the page may be making anew."""
        def click():
            self.all(selector)[place].click()
            return True
        self.until(click, selector)

    def ask(self, text):
        self.one("#question").send_keys(text, Keys.ENTER)

    def answered(self):
        """Waits for the end of the answer that is last, and gives its text."""
        self.until(lambda: not self.shown("#stop") and self.shown(".answer:last-child .tools"), "an answer")
        return self.text(".answer:last-child .text")

    def set(self, **values):
        self.one("#open-settings").click()
        self.one("#reset-settings").click()
        for name, value in values.items():
            self.one(f"#settings [name={name}]").send_keys(str(value))
        self.one("#settings .primary").click()
        self.until(lambda: not self.shown("#settings"))

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]



def status(url):
    return json.load(urllib.request.urlopen(url + "/admin/v1/status"))


def answers_come_and_thoughts_unfold(browser):
    # Bodies that the page sends are looked at on the way.
    browser.script("const ask = window.fetch; window.sent = []; window.fetch = (path, how) => { if (how?.body) sent.push(JSON.parse(how.body)); return ask(path, how); }")
    assert browser.script("return document.activeElement.id") == "question"
    browser.set(temperature=0, top_p=0.9, top_k=40, max_tokens=400, seed=7, thinking="on", system="Be brief.")
    browser.ask(QUESTION)
    browser.answered()
    sent = browser.script("return sent.at(-1)")
    assert sent.items() >= {"temperature": 0, "top_p": 0.9, "top_k": 40, "max_tokens": 400, "seed": 7, "enable_thinking": True, "stream": True}.items(), sent
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}], sent
    browser.one("#new-chat").click()

    browser.set(temperature=0)
    browser.ask(QUESTION)
    assert browser.answered() == "The code for Ruth is 4821."
    assert browser.script("return Object.keys(sent.at(-1)).sort()") == ["messages", "stream", "stream_options", "temperature"]
    assert browser.text(".thoughts summary").startswith("Thought for ")
    assert not browser.shown(".reasoning")
    summary = browser.one(".thoughts summary")
    summary.click()
    browser.until(lambda: browser.shown(".reasoning") and "Ruth" in browser.text(".reasoning"))
    summary.send_keys(Keys.ENTER)
    browser.until(lambda: not browser.shown(".reasoning"))
    figures = browser.text(".figures")
    assert "tokens/s" in figures and "cached" in figures and "first after" in figures, figures

    browser.ask("What is the code for Abel?")
    assert browser.answered() == "The code for Abel is 7719."
    assert "cached (device)" in browser.text(".figures"), browser.text(".figures")
    assert len(browser.all(".answer")) == 2 and len(browser.all(".question")) == 2


def answers_are_made_again_and_questions_changed(browser):
    browser.one(".again").click()
    browser.until(lambda: len(browser.script("return sent")) == 4)
    assert browser.answered() == "The code for Abel is 7719." and len(browser.all(".answer")) == 2
    edits = [element for element in browser.all(".question .action") if element.text == "Edit"]
    assert len(edits) == 1, "only the last question can be changed"
    edits[0].click()
    field = browser.one(".edit textarea")
    field.send_keys(Keys.ESCAPE)
    browser.until(lambda: not browser.all(".edit"))
    browser.all(".question .action")[-1].click()
    field = browser.one(".edit textarea")
    assert field.get_attribute("value") == "What is the code for Abel?"
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("What is the code for Ruth?", Keys.ENTER)
    browser.until(lambda: len(browser.script("return sent")) == 5)
    assert browser.answered() == "The code for Ruth is 4821."
    assert browser.text(".bubble") == "What is the code for Ruth?" and len(browser.all(".question")) == 2


def begin_long_answer(browser):
    """The model copies this until the context is full."""
    browser.ask("Copy this text:" + " one two" * 60)
    browser.until(lambda: len(browser.text(".answer .text")) > 200, "a long answer")


def long_answers_stop(browser):
    field = browser.one("#question")
    field.send_keys("one", Keys.SHIFT, Keys.ENTER)
    field.send_keys("two")
    assert field.get_attribute("value") == "one\ntwo"
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.BACKSPACE)
    for stop in ["key", "button", "elsewhere"]:
        browser.one("#new-chat").click()
        begin_long_answer(browser)
        assert browser.script("return document.getElementById('log').getAttribute('aria-busy')") == "true"
        browser.until(lambda: browser.text("#status") == "Answering")
        if stop == "key":
            browser.one("#question").send_keys(Keys.ESCAPE)
        else:
            if stop == "elsewhere":
                # It goes on while another chat is shown.
                browser.one("#new-chat").click()
                browser.until(lambda: not browser.all(".answer") and browser.shown("#send"))
                browser.press(".chat", 0)
                before = len(browser.text(".answer .text"))
                browser.until(lambda: len(browser.text(".answer .text")) > before + 100, "more of it")
            browser.one("#stop").click()
        browser.answered()
        assert "Stopped." in browser.text(".below"), browser.text(".below")
        assert browser.shown("#send")
        browser.until(lambda: status(browser.url)["running"] == 0, "the end of its session")
    # A chat that is deleted while it is answered does not come back.
    chats = len(browser.all(".chat"))
    browser.one("#new-chat").click()
    begin_long_answer(browser)
    browser.press("#chats li:has([aria-current]) .quiet")
    browser.until(lambda: status(browser.url)["running"] == 0 and not browser.all(".answer"))
    browser.one("#new-chat").click()
    assert len(browser.all(".chat")) == chats


EVIL = """<script>window.hit = 1</script>

<img src=x onerror="window.hit = 1"> [link](javascript:window.hit=1) [good](https://example.com/a_(b)) ![pic](https://example.com/x.png)

- **bold** and `<b>code</b>`

```html
<svg onload="window.hit = 1">
```
"""

# Answers with a stream of events, so many characters in each, or as told.
STREAM = """
const [reasoning, text, size] = arguments;
window.kept ??= window.fetch;
window.fetch = (path, how) => {
  if (!String(path).includes("chat/completions")) return window.kept(path, how);
  const events = [];
  const event = (delta) => events.push("data: " + JSON.stringify({ choices: [{ delta }] }) + "\\n\\n");
  for (let at = 0; at < reasoning.length; at += size) event({ reasoning_content: reasoning.slice(at, at + size) });
  for (let at = 0; at < text.length; at += size) event({ content: text.slice(at, at + size) });
  return Promise.resolve(new Response(events.join("") + "data: [DONE]\\n\\n", { headers: { "content-type": "text/event-stream" } }));
};
"""


def what_models_write_stays_text(browser):
    browser.one("#new-chat").click()
    for size in [1, 7, 10000]:
        browser.script(STREAM, EVIL, EVIL, size)
        browser.ask(EVIL.split("\n")[0])
        text = browser.answered()
        assert '<script>window.hit = 1</script>' in text and '<img src=x onerror="window.hit = 1">' in text, text
        browser.one(".answer:last-child summary").click()
        browser.until(lambda: EVIL.strip() in browser.text(".answer:last-child .reasoning"))
    # The same from what the browser has kept.
    browser.script("window.fetch = window.kept")
    browser.open()
    browser.press(".chat", 0)
    browser.until(lambda: len(browser.all(".answer")) == 3)
    made = browser.script("return [...document.querySelectorAll('#log *')].map((e) => e.localName)")
    assert not {"script", "img", "b", "iframe"} & set(made) and {"strong", "code", "a", "figure"} <= set(made), set(made)
    links = browser.script("return [...document.querySelectorAll('#log a')].map((a) => a.href)")
    assert set(links) == {"https://example.com/a_(b)", "https://example.com/x.png"}, links
    assert browser.script("return window.hit") is None
    # Markup could not be made of texts even by mistake.
    said = browser.module("try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (error) { return error.name; }")
    assert said == "TypeError", said
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    browser.one(".code figcaption button").click()
    browser.until(lambda: browser.text(".code figcaption button") == "Copied")
    assert browser.module("return await navigator.clipboard.readText()") == '<svg onload="window.hit = 1">'


def chats_are_kept_within_bounds(browser):
    titles = browser.script("return [...document.querySelectorAll('.chat')].map((e) => e.textContent)")
    assert any(title.startswith("The code for Ruth") for title in titles), titles
    browser.one("#new-chat").click()
    browser.press("#chats .quiet", 0)
    browser.until(lambda: len(browser.all(".chat")) == len(titles) - 1)
    kept = browser.module("""
        const { all, fresh, keep } = await import("/page/chats.js");
        const store = (content) => keep({ ...fresh(), messages: [{ role: "user", content }] });
        for (let chat = 0; chat < 60; chat += 1) store("chat " + chat);
        const many = all().length;
        for (let chat = 0; chat < 5; chat += 1) store("x".repeat(600000));
        const sizes = all().map((chat) => chat.messages[0].content.length);
        localStorage.setItem("paceline.chat.broken", "{");
        return [many, sizes.filter((size) => size === 600000).length, store("x".repeat(3000000)), all().every((chat) => chat.id)];
    """)
    assert kept[:2] == [50, 3] and "too long" in kept[2] and kept[3], kept
    browser.script("localStorage.clear()")
    browser.open()


def keys_are_enough(browser):
    """Everything before the question is reached from it backwards, the skip link last, and is seen to be."""
    passed = []
    while passed[-1:] != ["skip"]:
        ActionChains(browser.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
        name, outline = browser.script("const { activeElement: e } = document; return [e.id || e.className, getComputedStyle(e).outlineStyle];")
        assert outline == "solid" and len(passed) < 30, (passed, name, outline)
        passed.append(name)
    assert {"new-chat", "theme", "open-settings"} <= set(passed), passed
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.until(lambda: browser.script("return document.activeElement.id") == "question")
    nameless = browser.script("""return [...document.querySelectorAll("button, input, select, textarea")]
        .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)""")
    assert nameless == [], nameless


def light(browser):
    """How light the paper is, from 0 to 1."""
    return browser.script("""
        const canvas = new OffscreenCanvas(1, 1).getContext("2d");
        canvas.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data[0] / 255;""")


def it_is_light_or_dark(browser):
    assert light(browser) > 0.9
    browser.prefer("dark")
    browser.until(lambda: light(browser) < 0.2)
    browser.one("#theme").click()
    browser.until(lambda: light(browser) > 0.9)
    browser.open()
    assert light(browser) > 0.9, "the choice is kept"
    browser.one("#theme").click()
    browser.until(lambda: light(browser) < 0.2)
    browser.prefer("light")
    browser.until(lambda: light(browser) > 0.9, "the system's choice again")


def it_fits_a_phone(browser):
    browser.size(390, 844)
    browser.set(temperature=0)
    browser.ask(QUESTION)
    assert browser.answered() == "The code for Ruth is 4821."
    for name, part in [("chats", ".side"), ("row", "#row"), ("chat", "main")]:
        browser.one(f"[data-shows={name}]").click()
        browser.until(lambda: [p for p in [".side", "#row", "main"] if browser.shown(p)] == [part])
        assert browser.script("return document.documentElement.scrollWidth") <= 390, name
    browser.size(1440, 900)


def the_row_is_not_shown_without_permission(browser):
    browser.script("""
        window.kept ??= window.fetch;
        window.fetch = (path, how) => String(path).includes("status")
            ? Promise.resolve(new Response('{"error": {"message": "the key may not see this."}}', { status: 403 }))
            : window.kept(path, how);""")
    browser.until(lambda: "the key may not see this. The chat works without it." in browser.text("#row"))
    browser.one("#new-chat").click()
    browser.ask(QUESTION)
    assert browser.answered() == "The code for Ruth is 4821."
    browser.script("window.fetch = window.kept")
    browser.until(lambda: browser.text(".state") == "Serving")


def chat(url):
    browser = Browser(url)
    answers_come_and_thoughts_unfold(browser)
    answers_are_made_again_and_questions_changed(browser)
    long_answers_stop(browser)
    what_models_write_stays_text(browser)
    browser.complaints()
    chats_are_kept_within_bounds(browser)
    keys_are_enough(browser)
    it_is_light_or_dark(browser)
    it_fits_a_phone(browser)
    the_row_is_not_shown_without_permission(browser)
    asked = browser.script("return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)")
    assert set(asked) == {url}, set(asked)
    assert browser.complaints() == []
    browser.driver.quit()


def protection(url):
    browser = Browser(url)
    assert "API key is missing" in browser.text("#key-words"), browser.text("#key-words")
    assert browser.text(".state") == "Not shown"
    for key, opened in [("wrong", False), ("secret", True)]:
        browser.one("#key").send_keys(key, Keys.ENTER)
        browser.until(lambda: browser.shown("#key-form") != opened and (opened or "wrong" in browser.text("#key-words")))
    browser.until(lambda: browser.text(".state") == "Serving")
    assert browser.script("return Object.values(sessionStorage)") == ["secret"]
    assert "secret" not in browser.script("return JSON.stringify({...localStorage})")
    browser.set(temperature=0)
    # The key may make two requests in a minute.
    for _ in range(2):
        browser.ask(QUESTION)
        assert browser.answered() == "The code for Ruth is 4821."
    browser.ask(QUESTION)
    browser.until(lambda: browser.text(".failure button").startswith("Try again in "))
    assert not browser.one(".failure button").is_enabled()
    assert "requests" in browser.text(".failure p"), browser.text(".failure p")
    browser.driver.quit()


class Load:
    """Others who use the row meanwhile: long answers, one after another."""

    def __init__(self, url):
        self.over = threading.Event()
        self.users = [threading.Thread(target=self.use, args=(url, user)) for user in range(3)]
        for user in self.users:
            user.start()

    def use(self, url, user):
        chance = random.Random(user)
        while not self.over.is_set():
            body = {"prompt": [5 + user, 6, 7], "max_tokens": chance.randrange(200, 1200), "temperature": 1, "ignore_eos": True, "seed": chance.randrange(1000)}
            request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
            urllib.request.urlopen(request).read()
            self.over.wait(chance.random() * 2)

    def end(self):
        self.over.set()
        for user in self.users:
            user.join()


def pictures(browser, folder):
    """The pictures of the documentation; they are taken only on request."""
    take = lambda name: browser.driver.save_screenshot(f"{folder}/{name}.png")
    load = Load(browser.url)
    browser.script("localStorage.clear(); sessionStorage.clear()")
    browser.open()
    browser.set(temperature=0)
    for question in ["Count from 1 to 12.", "Hello"]:
        browser.ask(question)
        browser.answered()
        browser.one("#new-chat").click()
    for question in [QUESTION, "What is the code for Abel?"]:
        browser.ask(question)
        browser.answered()
        browser.one(".answer:last-child summary").click()
    browser.until(lambda: len(browser.script("return document.querySelector('.stage .line').getAttribute('points')").split()) > 45)
    browser.size(1280, 800)
    take("page-light")
    browser.prefer("dark")
    take("page-dark")
    browser.size(390, 844)
    browser.one("[data-shows=row]").click()
    browser.until(lambda: browser.shown("#row"))
    take("page-phone-row")
    browser.prefer("light")
    browser.one("[data-shows=chat]").click()
    browser.until(lambda: browser.shown("main"))
    take("page-phone-chat")
    browser.size(1440, 900)
    load.end()


def row(url):
    browser = Browser(url)
    folder = os.environ.get("PACELINE_SCREENSHOTS")
    if folder:
        pictures(browser, folder)
        browser.open()
    browser.set(temperature=0)
    browser.until(lambda: browser.text(".state") == "Serving" and len(browser.all(".stage")) == 2)
    browser.ask(QUESTION)
    assert browser.answered() == "The code for Ruth is 4821."
    browser.until(lambda: "busy" in browser.text(".stage .share"))
    words = browser.text("#row")
    for word in ["layers 0–3", "layers 4–7", "cpu (", "weights", "Sessions", "Steps in flight", "Pages", "Drafts right", "devices"]:
        assert word in words, (word, words)
    print("take a shard away", flush=True)
    assert input() == "it is gone"
    browser.until(lambda: browser.text(".state") == "Not serving" and browser.shown(".stage.gone"), "the loss")
    assert "It waits for a shard that takes layers" in browser.text(".fault"), browser.text(".fault")
    assert len(browser.all(".stage.gone")) == 1
    # Who asks meanwhile is told so in the server's words, and when to come again.
    browser.ask("What is the code for Abel?")
    browser.until(lambda: browser.shown(".failure .primary"))
    assert "try again later" in browser.text(".failure p") and browser.text(".answer:last-child .tools") == ""
    if folder:
        browser.size(1280, 800)
        browser.driver.save_screenshot(f"{folder}/page-lost.png")
        browser.size(1440, 900)
    print("bring a shard", flush=True)
    assert input() == "it comes"
    browser.until(lambda: browser.text(".state") == "Serving" and not browser.shown(".stage.gone"), "the return")
    happened = browser.text(".changes")
    for change in ["left", "joined", "Not serving", "epoch", "Serving again"]:
        assert change in happened, (change, happened)
    browser.until(lambda: browser.text(".failure button") == "Try again")
    browser.one(".failure button").click()
    assert browser.answered() == "The code for Abel is 7719."
    browser.driver.quit()


{"chat": chat, "protection": protection, "row": row}[sys.argv[1]](sys.argv[2])
print("all is well")
