//! JSON schemas by seed, and a check of values that knows nothing of whoever wrote them.

use serde_json::{Map, Value, json};

/// Numbers without a clock: the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The schema of this seed: an object, nested a few levels, that has short values only.
pub fn schema(seed: u64) -> Value {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1));
    object(&mut chance, 2)
}

fn object(chance: &mut Chance, depth: u32) -> Value {
    const NAMES: [&str; 8] = ["name", "count", "it's", "größe", "a b", "x\"y", "tags", "on"];
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..=chance.below(3) {
        let name = NAMES[chance.below(8) as usize];
        if properties.insert(name.to_owned(), value(chance, depth)).is_none() && chance.below(3) > 0 {
            required.push(name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn value(chance: &mut Chance, depth: u32) -> Value {
    match chance.below(if depth == 0 { 7 } else { 10 }) {
        0 => json!({"type": "string", "maxLength": chance.below(12)}),
        1 => {
            let least = chance.below(2000) as i64 - 1000;
            json!({"type": "integer", "minimum": least, "maximum": least + chance.below(500) as i64})
        }
        2 => json!({"type": "boolean"}),
        3 => json!({"enum": ["red", "grün", 3, null, "a \"b\""]}),
        4 => json!({"const": "always"}),
        5 => json!({"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{1,3}$"}),
        6 => json!({"type": "null"}),
        7 => object(chance, depth - 1),
        8 => {
            let least = chance.below(3);
            let items = value(chance, depth - 1);
            json!({"type": "array", "items": items, "minItems": least, "maxItems": least + chance.below(3)})
        }
        _ => json!({"anyOf": [value(chance, depth - 1), {"type": "boolean"}]}),
    }
}

/// Why `value` is not valid under `schema`, which is one of [`schema`]; nothing if it is.
pub fn problem(schema: &Value, value: &Value) -> Option<String> {
    let wrong = |what: &str| Some(format!("{value} is {what} under {schema}"));
    if let Some(alternatives) = schema["anyOf"].as_array() {
        return alternatives
            .iter()
            .all(|schema| problem(schema, value).is_some())
            .then(|| format!("{value}: none of {schema}"));
    }
    if let Some(examples) = schema["enum"].as_array() {
        return if examples.contains(value) { None } else { wrong("no example") };
    }
    if let Some(constant) = schema.get("const") {
        return if constant == value { None } else { wrong("another constant") };
    }
    match (schema["type"].as_str(), value) {
        (Some("null"), Value::Null) | (Some("boolean"), Value::Bool(_)) => None,
        (Some("integer"), Value::Number(number)) => {
            let range = schema["minimum"].as_i64()..=schema["maximum"].as_i64();
            if number.is_i64() && range.contains(&number.as_i64()) { None } else { wrong("out of range") }
        }
        (Some("string"), Value::String(text)) => {
            let length = text.chars().count() as u64;
            if schema["maxLength"].as_u64().is_some_and(|most| length > most) {
                return wrong("too long");
            }
            if schema.get("pattern").is_some() && !has_pattern(text) { wrong("of another pattern") } else { None }
        }
        (Some("array"), Value::Array(items)) => {
            let length = Some(items.len() as u64);
            if !(schema["minItems"].as_u64()..=schema["maxItems"].as_u64()).contains(&length) {
                return wrong("of another length");
            }
            items.iter().find_map(|item| problem(&schema["items"], item))
        }
        (Some("object"), Value::Object(fields)) => fields_problem(schema, fields),
        _ => wrong("of another type"),
    }
}

/// `^[a-f]{2,4}-[0-9]{1,3}$`, by hand.
fn has_pattern(text: &str) -> bool {
    let Some((letters, digits)) = text.split_once('-') else { return false };
    (2..=4).contains(&letters.len())
        && letters.bytes().all(|letter| (b'a'..=b'f').contains(&letter))
        && (1..=3).contains(&digits.len())
        && digits.bytes().all(|digit| digit.is_ascii_digit())
}

fn fields_problem(schema: &Value, fields: &Map<String, Value>) -> Option<String> {
    let missing = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = missing.into_iter().find(|name| !fields.contains_key(*name)) {
        return Some(format!("{missing:?} is missing under {schema}"));
    }
    fields.iter().find_map(|(name, value)| match schema["properties"].get(name) {
        None => Some(format!("{name:?} is one too many under {schema}")),
        Some(schema) => problem(schema, value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_tells_right_from_wrong() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["a"],
            "properties": {
                "a": {"type": "integer", "minimum": -3, "maximum": 4},
                "b": {"type": "array", "items": {"enum": ["x", null]}, "minItems": 1, "maxItems": 2},
                "c": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "boolean"}]},
                "d": {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{1,3}$"},
            },
        });
        for right in [
            json!({"a": 4}),
            json!({"a": -3, "b": ["x", null], "c": true, "d": "fade-007"}),
            json!({"a": 0, "c": "éé"}),
        ] {
            assert_eq!(problem(&schema, &right), None);
        }
        for wrong in [
            json!({}),
            json!({"a": 5}),
            json!({"a": 0.5}),
            json!({"a": "0"}),
            json!({"a": 0, "b": []}),
            json!({"a": 0, "b": ["y"]}),
            json!({"a": 0, "b": ["x", "x", "x"]}),
            json!({"a": 0, "c": "abc"}),
            json!({"a": 0, "d": "a-1"}),
            json!({"a": 0, "e": 1}),
            json!([]),
        ] {
            assert!(problem(&schema, &wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn seeds_give_many_schemas_and_each_the_same_one() {
        let distinct: std::collections::BTreeSet<String> = (0..100).map(|seed| schema(seed).to_string()).collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
        assert_eq!(schema(5), schema(5));
    }
}
