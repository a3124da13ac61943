// Drives graphile-worker for one slice and prints one line of JSON with what came of it.
//
//   node driver.mjs <npm folder> <database url> add|claim|batched <connections> <warm-up ms> <measured ms>
//
// add: as many addJob calls in flight as there are connections.
// claim: jobs are there already; a worker with as many concurrent jobs as connections, everything else as by default, so
//   each job is one claim and one completion in the database.
// batched: the same with a local queue and batched completions, which its documentation advises for throughput.
//
// Completions are counted in the database: the worker reports a job as complete before the database knows.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [home, connectionString, mode, connectionsText, warmupText, measureText] = process.argv.slice(2);
const connections = Number(connectionsText);
const warmupMs = Number(warmupText);
const measureMs = Number(measureText);

const require = createRequire(`${home}/package.json`);
const { Logger, makeWorkerUtils, run } = await import(pathToFileURL(require.resolve("graphile-worker")));

// More jobs per second than either way of claiming gets through on two cores.
const PREFILL_PER_SECOND = { claim: 10_000, batched: 40_000 };
const PREFILL_BATCH = 10_000;
// A slice ends early rather than on an empty queue.
const CLAIMED_SHARE_MAX = 0.9;
const LOOK_MS = 5;
const LOCAL_QUEUE = 500;

const TEXT = "resize the picture to 800 x 600, keep the colour profile, answer with its address";
const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const shared = { connectionString, logger: quiet };
const utils = await makeWorkerUtils({ preset: { worker: { ...shared, maxPoolSize: connections } } });
const query = (sql) => utils.withPgClient((client) => client.query(sql));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

await utils.migrate();
// A slice begins with an empty queue, whatever the one before has left.
await query("TRUNCATE graphile_worker._private_jobs");
const result = mode === "add" ? await add() : await claim();
await utils.release();
console.log(JSON.stringify(result));

async function add() {
  const start = performance.now();
  const countedFrom = start + warmupMs;
  const end = countedFrom + measureMs;
  const latencies = [];
  let errors = 0;
  const loop = async (connection) => {
    for (let n = 0; performance.now() < end; n++) {
      const before = performance.now();
      try {
        await utils.addJob("echo", { n: connection * 1_000_000_000 + n, text: TEXT });
      } catch (error) {
        errors++;
        console.error(String(error));
        continue;
      }
      const after = performance.now();
      if (after >= countedFrom && after < end) latencies.push(after - before);
    }
  };
  await Promise.all(Array.from({ length: connections }, (_, connection) => loop(connection)));
  latencies.sort((a, b) => a - b);
  const quantile = (q) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * q))] * 1000;
  return {
    ops: latencies.length,
    seconds: measureMs / 1000,
    p50_us: quantile(0.5),
    p99_us: quantile(0.99),
    errors,
  };
}

async function claim() {
  const total = Math.ceil((PREFILL_PER_SECOND[mode] * (warmupMs + measureMs)) / 1000);
  for (let from = 0; from < total; from += PREFILL_BATCH) {
    const length = Math.min(PREFILL_BATCH, total - from);
    await utils.addJobs(
      Array.from({ length }, (_, n) => ({ identifier: "echo", payload: { n: from + n, text: TEXT } })),
    );
  }
  await query("VACUUM ANALYZE graphile_worker._private_jobs");

  let claimed = 0;
  let errors = 0;
  const batching =
    mode === "batched"
      ? { localQueue: { size: LOCAL_QUEUE }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
      : {};
  const runner = await run({
    preset: { worker: { ...shared, concurrentJobs: connections, maxPoolSize: connections + 2, ...batching } },
    taskList: { echo: async () => {} },
    noHandleSignals: true,
  });
  runner.events.on("job:start", () => claimed++);
  runner.events.on("job:error", () => errors++);

  await sleep(warmupMs);
  const before = await left();
  const deadline = before.at + measureMs;
  while (performance.now() < deadline && claimed < total * CLAIMED_SHARE_MAX) await sleep(LOOK_MS);
  const after = await left();
  await runner.stop();
  return { ops: before.jobs - after.jobs, seconds: (after.at - before.at) / 1000, claimed, errors };
}

// Completed jobs are deleted. The time is that of the answer, at both ends.
async function left() {
  const { rows } = await query("SELECT count(*)::int AS jobs FROM graphile_worker._private_jobs");
  return { jobs: rows[0].jobs, at: performance.now() };
}
