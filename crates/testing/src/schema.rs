//! JSON Schemas of what commands write: whether a value fits one, and one that is learnt from values.
//!
//! A schema here has `type`, `properties`, `required`, `additionalProperties`, `items`, `const` and `description`, and no
//! more: that is enough for figures, and read by every validator. [`misfits`] is stricter than the specification: it tells
//! properties that the schema does not name, as nobody would learn of them.

use std::fmt::Write;

use serde_json::{Map, Value, json};

/// What of a value does not fit a schema, a line each: none if it fits.
pub fn misfits(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look("$", schema, value, &mut found);
    found
}

fn look(at: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    const KNOWN: [&str; 11] = [
        "$schema",
        "$id",
        "title",
        "description",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "const",
        "$comment",
    ];
    let Some(keys) = schema.as_object() else { return found.push(format!("{at}: the schema is no object")) };
    found.extend(
        keys.keys().filter(|key| !KNOWN.contains(&key.as_str())).map(|key| format!("{at}: a schema with {key}")),
    );
    if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
        found.push(format!("{at}: {value}, where the schema has {wanted}"));
    }
    let (is, may) = (type_of(value), types(schema));
    if !may.is_empty() && !may.iter().any(|may| may == is || (may == "number" && is == "integer")) {
        found.push(format!("{at}: of type {is}, where the schema has {}", may.join(" or ")));
    }
    match value {
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    found.push(format!("{at}: no {name}, which the schema requires"));
                }
            }
            for (name, field) in fields {
                let inner = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                match inner {
                    Some(inner) => look(&format!("{at}.{name}"), inner, field, found),
                    None => found.push(format!("{at}: {name}, which the schema does not name")),
                }
            }
        }
        Value::Array(items) => match schema.get("items") {
            Some(inner) => {
                items.iter().enumerate().for_each(|(n, item)| look(&format!("{at}[{n}]"), inner, item, found));
            }
            None if items.is_empty() => {}
            None => found.push(format!("{at}: items, which the schema does not describe")),
        },
        _ => {}
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn types(schema: &Value) -> Vec<String> {
    match &schema["type"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(some) => some.iter().filter_map(Value::as_str).map(String::from).collect(),
        _ => Vec::new(),
    }
}

/// Widens a schema so that a value fits it. A field that was in all values so far is required; descriptions stay.
pub fn learn(schema: &mut Value, value: &Value) {
    let first = schema.get("type").is_none();
    if !schema.is_object() {
        *schema = json!({});
    }
    let mut may = types(schema);
    let is = type_of(value).to_string();
    let is_covered = may.contains(&is) || is == "integer" && may.contains(&"number".into());
    if !is_covered {
        if is == "number" {
            may.retain(|may| may != "integer");
        }
        may.push(is);
        may.sort();
        schema["type"] = if may.len() == 1 { json!(may[0]) } else { json!(may) };
    }
    match value {
        Value::Object(fields) => {
            let seen = schema.get("properties").is_some();
            if schema.get("additionalProperties").is_some() {
                fields.values().for_each(|field| learn(&mut schema["additionalProperties"], field));
                return;
            }
            if !seen {
                schema["properties"] = Value::Object(Map::new());
            }
            fields.iter().for_each(|(name, field)| learn(&mut schema["properties"][name], field));
            let was: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let all = fields.keys().filter(|name| first || !seen || was.contains(&name.as_str()));
            schema["required"] = json!(all.collect::<Vec<_>>());
        }
        Value::Array(items) => {
            for item in items {
                learn(&mut schema["items"], item);
            }
        }
        _ => {}
    }
}

/// The fields of a schema as a table in Markdown: path, type, what it is.
pub fn table(schema: &Value) -> String {
    let mut out = String::from("| field | type | what |\n|---|---|---|\n");
    rows("", schema, true, &mut out);
    out
}

fn rows(at: &str, schema: &Value, required: bool, out: &mut String) {
    let what = schema["description"].as_str().unwrap_or_default().replace('|', "\\|");
    if !at.is_empty() {
        let optional = if required { "" } else { ", optional" };
        let kind = types(schema).join(" or ");
        let _ = writeln!(out, "| `{at}` | {kind}{optional} | {what} |");
    }
    let inner = |name: &str| if at.is_empty() { name.to_string() } else { format!("{at}.{name}") };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
        rows(&inner(name), field, required, out);
    }
    if let Some(field) = schema.get("additionalProperties") {
        rows(&inner("*"), field, true, out);
    }
    if let Some(item) = schema.get("items").filter(|item| item.get("properties").is_some()) {
        for (name, field) in item["properties"].as_object().into_iter().flatten() {
            let required = item["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
            rows(&format!("{at}[].{name}"), field, required, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_fits_and_anything_else_is_told() {
        let values = [
            json!({ "format": "x/1", "rows": [{ "a": 1, "b": null }, { "a": 2.5 }], "map": { "udp": 1 } }),
            json!({ "format": "x/1", "rows": [], "map": {} }),
        ];
        let mut schema = json!({ "properties": { "map": { "additionalProperties": {} } } });
        schema["properties"]["format"]["const"] = json!("x/1");
        schema["required"] = json!(["format", "rows", "map"]);
        values.iter().for_each(|value| learn(&mut schema, value));
        for value in &values {
            assert_eq!(misfits(&schema, value), [""; 0], "{schema:#}");
        }
        for (value, part) in [
            (json!({ "format": "x/2", "rows": [], "map": {} }), "$.format: \"x/2\", where the schema has \"x/1\""),
            (json!({ "format": "x/1", "map": {} }), "$: no rows"),
            (json!({ "format": "x/1", "rows": [{ "a": "1" }], "map": {} }), "$.rows[0].a: of type string"),
            (json!({ "format": "x/1", "rows": [{}], "map": {} }), "$.rows[0]: no a"),
            (json!({ "format": "x/1", "rows": [], "map": {}, "new": 1 }), "new, which the schema does not name"),
        ] {
            let found = misfits(&schema, &value).join("\n");
            assert!(found.contains(part), "{found}");
        }
        assert!(misfits(&json!({ "oneOf": [] }), &json!(1))[0].contains("a schema with oneOf"));
        let table = table(&schema);
        assert!(
            table.contains("| `rows[].b` | null, optional |") && table.contains("| `map.*` | integer |"),
            "{table}"
        );
    }
}
