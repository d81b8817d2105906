// The page at `/` in a real browser. Needs Chromium, whose path is in LILY_BROWSER; SCREENSHOTS names a folder for pictures.

import assert from "node:assert/strict";
import test from "node:test";
import puppeteer from "puppeteer-core";

const skip = process.env.LILY_BROWSER ? false : "there is no Chromium";

async function open(browser, size, scheme) {
  const page = await browser.newPage();
  await page.setViewport({ ...size, deviceScaleFactor: 2 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("console", (message) => message.type() === "error" && page.faults.push(message.text()));
  page.on("request", (request) => {
    if (!request.url().startsWith(process.env.LILY_URL)) page.faults.push(`asks for ${request.url()}`);
  });
  await page.evaluateOnNewDocument((key) => sessionStorage.setItem("key", key), process.env.LILY_KEY);
  await page.goto(process.env.LILY_URL);
  await page.waitForFunction(() => document.getElementById("model").textContent.includes("tokens of context"));
  return page;
}

const settled = (page) =>
  page.waitForFunction(() => document.getElementById("send").textContent === "Send" && document.querySelector(".assistant:last-child .note")?.textContent, { timeout: 120000 });

async function say(page, text) {
  await page.type("#message", text);
  await page.keyboard.press("Enter");
}

const picture = (page, name) => process.env.SCREENSHOTS && page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` });

test("the page", { skip }, async (t) => {
  const browser = await puppeteer.launch({ executablePath: process.env.LILY_BROWSER, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  t.after(() => browser.close());

  await t.test("a chat goes on and uses the cache", async () => {
    const page = await open(browser, { width: 900, height: 700 }, "light");
    await page.evaluate(() => { document.getElementById("limit").value = "120"; });
    await say(page, "Tell me a story about a fox.");
    await settled(page);
    await say(page, "What happened then?");
    await page.waitForFunction(() => document.querySelectorAll(".assistant").length === 2);
    await settled(page);
    const shown = await page.evaluate(() => ({
      users: document.querySelectorAll(".user").length,
      notes: [...document.querySelectorAll(".assistant .note")].map((note) => note.textContent),
      errors: document.querySelectorAll(".error").length,
    }));
    assert.equal(shown.users, 2);
    assert.equal(shown.errors, 0);
    assert.match(shown.notes[0], /\d+ tokens · prompt \d+/);
    assert.match(shown.notes[1], /from the cache/);
    await picture(page, "chat");
    assert.deepEqual(page.faults, []);
  });

  await t.test("a tool is called and its result goes back", async () => {
    const page = await open(browser, { width: 420, height: 780 }, "dark");
    // The request is made to require a call, so that the test does not depend on what the model would do.
    await page.evaluate(() => {
      const original = window.fetch;
      let first = true;
      window.fetch = (url, options) => {
        if (first && String(url).includes("chat/completions")) {
          first = false;
          options.body = JSON.stringify({ ...JSON.parse(options.body), tool_choice: "required", parallel_tool_calls: false });
        }
        return original(url, options);
      };
      document.getElementById("thinking").checked = false;
      document.getElementById("limit").value = "60";
      document.getElementById("tools").value = JSON.stringify([{ type: "function", function: { name: "weather", parameters: {
        type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] } } }]);
    });
    await say(page, "What is the weather in Rome?");
    await page.waitForSelector(".call input");
    assert.match(await page.$eval(".call pre", (element) => element.textContent), /^\{"city":"(Rome|Oslo)"\}$/);
    await page.type(".call input", "sunny");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".assistant").length === 2);
    await settled(page);
    await picture(page, "tool");
    assert.deepEqual(page.faults, []);
  });

  await t.test("what a model writes does not become markup", async () => {
    const page = await open(browser, { width: 600, height: 500 }, "light");
    await page.evaluate(() => fill(document.getElementById("turns"), "<b>x</b>\n```js\n<img src=x onerror=alert(1)>\n```\n<script>"));
    assert.equal(await page.$eval("#turns", (element) => element.querySelectorAll("b, img, script").length), 0);
    assert.equal(await page.$eval("#turns pre", (element) => element.textContent), "<img src=x onerror=alert(1)>");
    assert.deepEqual(page.faults, []);
  });

  await t.test("a wrong key is told", async () => {
    const page = await open(browser, { width: 600, height: 500 }, "light");
    await page.evaluate(() => { document.getElementById("key").value = "wrong"; });
    await say(page, "Hello");
    await page.waitForSelector(".error");
    assert.match(await page.$eval(".error", (element) => element.textContent), /API key/);
  });
});
