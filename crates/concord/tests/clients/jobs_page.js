// The page of jobs, with as much of a browser as it needs: `node jobs_page.js jobs.html`.
const assert = require("assert");
const fs = require("fs");

const html = fs.readFileSync(process.argv[2], "utf8");
const script = html.split("<script>")[1].split("</script>")[0];

class Element {
  constructor() {
    Object.assign(this, { rows: [], cells: [], heard: {}, textContent: "", className: "", classList: { toggle() {} } });
  }
  get tBodies() { return [this.body ??= new Element()]; }
  insertRow() { this.rows.push(new Element()); return this.rows.at(-1); }
  insertCell() { this.cells.push(new Element()); return this.cells.at(-1); }
  replaceChildren(...rows) { this.rows = rows; }
  appendChild(child) { return child; }
  append() {}
  setAttribute() {}
  addEventListener(name, does) { this.heard[name] = does; }
}
const elements = {};
const named = id => (elements[id] ??= new Element());
const document = { getElementById: named, createElement: () => new Element(), createElementNS: () => new Element() };
const sessionStorage = { getItem: () => "token", setItem() {} };

// What was asked, and answers when they are let go.
const asked = [];
let waiting = [];
const task = number => ({ task: number, how: "done", status: 0, attempts: 1, output: "x" });
const answers = path => {
  if (path === "/owner") return { owner: "a1" };
  if (path === "/workers") return [];
  const job = { job: 7, title: "x", tasks: 3, is_over: true, done: 1, seconds: 1 };
  if (path === "/jobs") return [job];
  if (path.includes("/retry")) return { job: 8, tasks: 2 };
  if (!path.includes("/results")) return job;
  const from = Number(path.match(/from=(\d+)/)[1]);
  return { next: 3, is_last: true, results: [0, 1, 2].slice(from).map(task) };
};
const fetch = (path, { method }) => {
  asked.push(method + " " + path);
  return new Promise(go => waiting.push(() => go({ ok: true, json: async () => answers(path) })));
};
const turns = () => new Promise(done => setImmediate(done));
const letGo = async () => {
  for (let quiet = 0; quiet < 3; quiet++) {
    if (waiting.length) quiet = 0;
    for (const go of waiting.splice(0)) go();
    await turns();
  }
};

(async () => {
  let tick = null;
  const run = new Function("document", "sessionStorage", "fetch", "crypto", "setInterval", script);
  run(document, sessionStorage, fetch, require("crypto").webcrypto, does => { tick = does; });
  await letGo();
  const rows = () => named("tasks").tBodies[0].rows.length;
  // Somebody chooses the job, and clicks again, while answers are on their way.
  named("jobs").tBodies[0].rows[0].heard.click();
  named("more").heard.click();
  named("more").heard.click();
  await letGo();
  assert.strictEqual(rows(), 3, "each task has one row");
  // The clock asks for nothing while somebody waits for answers.
  tick();
  const before = asked.length;
  tick();
  assert.strictEqual(asked.length, before);
  await letGo();
  assert.strictEqual(rows(), 3);
  // Two clicks have one key, and name whose job it is.
  asked.length = 0;
  named("retry").heard.click();
  named("retry").heard.click();
  await letGo();
  const retries = asked.filter(what => what.startsWith("POST"));
  assert.strictEqual(retries.length, 2);
  assert.strictEqual(retries[0], retries[1]);
  assert.match(retries[0], /^POST \/jobs\/7\/retry\?cancelled=1&key=[0-9a-f]{32}&owner=a1$/);
  assert.ok(asked.every(what => !what.includes("/jobs/7") || what.includes("owner=a1")));
})().catch(error => { console.error(error); process.exit(1); });
