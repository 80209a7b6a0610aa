// Loads a trace into Perfetto's own trace processor (WebAssembly, run by node) and prints the rows of queries as JSON.
//   node perfetto_query.mjs FOLDER TRACE SQL...
// FOLDER holds trace_processor.wasm with its loader; perfetto.sh puts it there.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";

const [folder, trace, ...queries] = process.argv.slice(2);

// The loader was made for a browser's worker: it gets one, and the bytes that it would fetch.
Object.defineProperty(globalThis, "self", { value: globalThis, configurable: true, writable: true });
Object.defineProperty(globalThis, "location", { value: { href: pathToFileURL(folder).href + "/" }, configurable: true });
globalThis.WorkerGlobalScope ??= class {};
globalThis.wasmBytes = new Uint8Array(readFileSync(join(folder, "trace_processor.wasm")));

function replaced(text, before, after) {
  if (!text.includes(before)) throw new Error(`another version of the loader: no ${before}`);
  return text.replace(before, after);
}

let loader = readFileSync(join(folder, "engine_bundle.node.js"), "utf8");
loader = replaced(loader, "this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;");
loader = replaced(loader, "locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasmBytes,");
const made = "const wasmBridge = new wasm_bridge_1.WasmBridge();";
loader = replaced(loader, made, made + " globalThis.bridge = wasmBridge;");
runInThisContext(loader);

const { EngineBase } = await import(pathToFileURL(join(folder, "engine.mjs")).href);

class Engine extends EngineBase {
  mode = "WASM";
  id = "test";

  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => this.onRpcResponseBytes(message.data);
  }

  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

console.warn = () => {};
const { port1, port2 } = new MessageChannel();
globalThis.bridge.initialize(port1);
const engine = new Engine(port2);
await new Promise((resolve) => setTimeout(resolve, 1500));
await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();

const tables = [];
for (const sql of queries) {
  const result = await engine.query(sql);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((name) => { const v = row.get(name); return typeof v === "bigint" ? Number(v) : v; }));
  tables.push(rows);
}
console.log(JSON.stringify(tables));
process.exit(0);
