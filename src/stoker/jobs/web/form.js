// A form made from a config's JSON schema. What differs from the defaults is what is sent.

import { el, fresh, write } from "./dom.js";
import { leaf } from "./words.js";

/** A text that is no value of its field's kind. */
class Unreadable extends Error {}

/**
 * A form for a schema: `node`, `values()` (nested, without defaults), `showErrors(fields)`, `set(values)`.
 * Beside what JSON schemas have, a field may have a `label`, and a word (`blank`) for what is so where it is
 * left empty.
 */
export function schemaForm(schema, { prefix }) {
  const fields = new Map();
  const node = el("div", { class: "fields" });
  build(schema, "", node);

  function build(object, above, into) {
    const groups = [];
    for (const [name, raw] of Object.entries(object.properties)) {
      const inner = resolve(raw);
      const path = above + name;
      if (inner.properties) {
        // The settings of the training itself are what most people change.
        const group = el("details", { class: "group", open: path === "train" }, el("summary", {}, title(path)));
        const body = el("div", { class: "fields" });
        group.append(body);
        build(inner, `${path}.`, body);
        groups.push(group);
      } else {
        const field = makeField(path, inner, inner.default ?? null);
        fields.set(path, field);
        into.append(field.node);
      }
    }
    into.append(...groups);
  }

  return {
    node,
    /** What differs from the defaults. Throws the first refusal, with its field shown. */
    values() {
      const found = {};
      let first = null;
      for (const [path, field] of fields) {
        try {
          field.clear();
          const value = field.read();
          if (JSON.stringify(value) !== JSON.stringify(field.standard)) place(found, path.split("."), value);
        } catch (error) {
          if (!(error instanceof Unreadable)) throw error;
          field.refuse(error.message);
          first ??= field;
        }
      }
      if (first) {
        reveal(first);
        return null;
      }
      return found;
    },
    /** Show a server's refusals at their fields; those without a field are returned. */
    showErrors(errors) {
      const rest = [];
      let first = null;
      for (const { field: told, message, allowed } of errors) {
        const path = told.startsWith(prefix) ? told.slice(prefix.length) : told;
        const field = fields.get(path);
        const text = allowed?.length && !message.includes(String(allowed[0])) ? `${message} (allowed: ${allowed.join(", ")})` : message;
        if (field) {
          field.refuse(text);
          first ??= field;
        } else {
          rest.push(`${told}: ${text}`);
        }
      }
      if (first) reveal(first);
      return rest;
    },
    /** Begin with these values instead of the defaults. */
    set(values, above = "") {
      for (const [name, value] of Object.entries(values ?? {})) {
        const path = above + name;
        if (fields.has(path)) fields.get(path).set(value);
        else if (value !== null && typeof value === "object" && !Array.isArray(value)) this.set(value, `${path}.`);
      }
    },
  };
}

function reveal(field) {
  for (let node = field.node.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  field.input.focus();
}

/** A schema whose alternative to none is a mark. */
function resolve(schema) {
  const { anyOf, ...beside } = schema;
  const kinds = anyOf?.filter((one) => one.type !== "null") ?? [];
  return kinds.length === 1 ? { ...kinds[0], ...beside, nullable: anyOf.length > 1 } : schema;
}

function makeField(path, schema, standard) {
  const id = fresh("field");
  const wrong = el("p", { id: `${id}-wrong`, class: "wrong", role: "alert", hidden: true });
  const hint = el("p", { id: `${id}-hint`, class: "hint" });
  const attributes = { id, name: path, "aria-describedby": `${id}-hint ${id}-wrong`, autocomplete: "off" };
  const input = makeInput(schema, attributes);
  const isSwitch = schema.type === "boolean" && !schema.nullable;
  const label = el("label", { for: id }, schema.label ?? title(path));
  const field = {
    input,
    standard,
    node: el("div", { class: isSwitch ? "field switch" : "field" }, isSwitch ? [input, label] : [label, input], hint, wrong),
    read: () => (isSwitch ? input.checked : read(path, input.value, schema)),
    set(value) {
      if (isSwitch) input.checked = Boolean(value);
      else input.value = typed(value, schema);
      field.note();
    },
    /** Say what the field is, and its default where that is not what it holds. */
    note() {
      const isChanged = isSwitch ? input.checked !== standard : input.value !== typed(standard, schema);
      write(hint, [sentence(schema.description), schema.type === "array" && !schema.byLine && "Several by commas.",
        isChanged && !schema.byLine && `Default: ${(standard === null && schema.blank) || shown(standard)}`].filter(Boolean).join(" "));
      field.node.classList.toggle("changed", isChanged);
    },
    refuse(text) {
      write(wrong, text);
      wrong.hidden = false;
      input.setAttribute("aria-invalid", "true");
    },
    clear() {
      wrong.hidden = true;
      input.removeAttribute("aria-invalid");
    },
  };
  field.set(standard);
  input.addEventListener("input", () => {
    field.clear();
    field.note();
  });
  return field;
}

function makeInput(schema, attributes) {
  if (schema.enum) {
    const values = schema.enum.includes(null) || !schema.nullable ? schema.enum : [null, ...schema.enum];
    return el("select", attributes, values.map((value) => el("option", { value: value === null ? "" : String(value) }, leaf(value))));
  }
  if (schema.type === "boolean" && !schema.nullable) return el("input", { ...attributes, type: "checkbox" });
  if (schema.type === "boolean") return el("select", attributes, ["", "true", "false"].map((value) => el("option", { value }, value || "none")));
  if (schema.byLine) return el("textarea", { ...attributes, rows: "4", spellcheck: "false" });
  const mode = { integer: "numeric", number: "decimal" }[schema.type];
  return el("input", { ...attributes, type: "text", inputmode: mode, spellcheck: "false", placeholder: schema.nullable ? schema.blank ?? "none" : null });
}

/** A value as it stands in an input. */
function typed(value, schema) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(schema.byLine ? "\n" : ", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function read(path, text, schema) {
  const given = text.trim();
  if (given === "" && (schema.nullable || schema.enum?.includes(null))) return null;
  if (schema.enum) return schema.enum.find((value) => String(value) === given);
  switch (schema.type) {
    case "string":
      return text;
    case "boolean":
      return given === "true";
    case "integer":
      return readNumber(path, given, schema, /^[+-]?\d+$/, "a whole number");
    case "number":
      return readNumber(path, given, schema, /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i, "a number, as in 0.001 or 1e-3");
    case "array": {
      if (given === "") return [];
      if (schema.byLine) return given.split("\n").map((one) => one.trim()).filter(Boolean);
      return given.split(",").map((one) => read(path, one.trim(), schema.items));
    }
    default:
      try {
        return JSON.parse(given);
      } catch {
        throw new Unreadable(`${given} is no JSON: write it as in {"key": 1} or [1, 2]`);
      }
  }
}

function readNumber(path, given, schema, form, kind) {
  const bounds = [
    schema.minimum !== undefined && `${schema.minimum} or more`,
    schema.exclusiveMinimum !== undefined && `above ${schema.exclusiveMinimum}`,
    schema.maximum !== undefined && `at most ${schema.maximum}`,
    schema.exclusiveMaximum !== undefined && `below ${schema.exclusiveMaximum}`,
  ].filter(Boolean).join(", ");
  const value = Number(given);
  const fits = form.test(given)
    && !(value < schema.minimum) && !(value <= schema.exclusiveMinimum) && !(value > schema.maximum) && !(value >= schema.exclusiveMaximum);
  if (!fits) throw new Unreadable(`${given || "nothing"} is not ${kind}${bounds && `, ${bounds}`}`);
  return value;
}

function sentence(text) {
  return text ? text.trim().replace(/[.;:]?$/, ".") : "";
}

function shown(standard) {
  return Array.isArray(standard) ? standard.join(", ") || "none" : leaf(standard === "" ? null : standard);
}

function title(path) {
  return path.split(".").pop().replaceAll("_", " ");
}

function place(into, [first, ...rest], value) {
  if (rest.length === 0) into[first] = value;
  else place((into[first] ??= {}), rest, value);
}
