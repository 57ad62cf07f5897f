//! What tools exist, and what their arguments may be: a model that writes arguments as plain text does not say whether `5` is
//! a number.

use std::collections::HashMap;

use serde_json::Value;

/// How deep references and alternatives of a schema are followed.
const DEPTH: usize = 16;

/// The tools that an answer may call.
#[derive(Debug, Clone, Default)]
pub struct ToolTable {
    /// By name, and then by parameter.
    tools: HashMap<String, HashMap<String, ArgumentTypes>>,
}

/// The JSON types that an argument may have; none if nothing is known about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ArgumentTypes {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    /// Lists and objects.
    nested: bool,
}

impl ToolTable {
    /// The tools of a request: as in chat completions (`function` with `name` and `parameters`), or the same fields without a
    /// `function` around them; `input_schema` is another name of `parameters`. Tools without a name cannot be called.
    pub fn new(tools: &[Value]) -> Self {
        let named = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            Some((function.get("name")?.as_str()?.to_owned(), parameters(schema.unwrap_or(&Value::Null))))
        });
        Self { tools: named.collect() }
    }

    /// Whether there is a tool of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// What may stand for a parameter.
    pub(super) fn argument(&self, tool: &str, parameter: &str) -> ArgumentTypes {
        self.tools.get(tool).and_then(|tool| tool.get(parameter)).copied().unwrap_or_default()
    }
}

fn parameters(schema: &Value) -> HashMap<String, ArgumentTypes> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return HashMap::new() };
    let types = |property: &Value| {
        let mut types = ArgumentTypes::default();
        types.allow(property, schema, DEPTH);
        types
    };
    properties.iter().map(|(name, property)| (name.clone(), types(property))).collect()
}

impl ArgumentTypes {
    /// Adds what `schema`, a part of `root`, allows.
    fn allow(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        match &schema["type"] {
            Value::String(name) => self.allow_name(name),
            Value::Array(names) => names.iter().filter_map(Value::as_str).for_each(|name| self.allow_name(name)),
            _ => {}
        }
        for examples in [&schema["enum"], &Value::Array(schema.get("const").cloned().into_iter().collect())] {
            examples.as_array().into_iter().flatten().for_each(|example| self.allow_value(example));
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let alternatives = schema[key].as_array().into_iter().flatten();
            alternatives.for_each(|alternative| self.allow(alternative, root, depth - 1));
        }
        let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) = reference.and_then(|pointer| root.pointer(pointer)) {
            self.allow(target, root, depth - 1);
        }
    }

    fn allow_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "array" | "object" => self.nested = true,
            _ => {}
        }
    }

    fn allow_value(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.string = true,
            Value::Number(_) => self.number = true,
            Value::Bool(_) => self.boolean = true,
            Value::Null => self.null = true,
            Value::Array(_) | Value::Object(_) => self.nested = true,
        }
    }

    /// Whether every text is an argument as it stands.
    pub(super) fn is_text(self) -> bool {
        self == Self { string: true, ..Self::default() }
    }

    /// The JSON of an argument that the model wrote as `text`: what it may be, and a string if it can be nothing else.
    pub(super) fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let value = match trimmed {
            // As in Python, which models have seen more of.
            "True" => Some(("true", Value::Bool(true))),
            "False" => Some(("false", Value::Bool(false))),
            "None" => Some(("null", Value::Null)),
            _ => serde_json::from_str(trimmed).ok().map(|value| (trimmed, value)),
        };
        match value {
            Some((json, value)) if self.allows(&value) => json.to_owned(),
            _ => Value::from(text).to_string(),
        }
    }

    fn allows(self, value: &Value) -> bool {
        let unknown = self == Self::default();
        match value {
            // A string in quotes: unless only JSON can be meant, the quotes are part of it.
            Value::String(_) => false,
            Value::Number(_) => self.number || unknown,
            Value::Bool(_) => self.boolean || unknown,
            Value::Null => self.null || unknown,
            Value::Array(_) | Value::Object(_) => self.nested || unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(schema: &Value, text: &str) -> String {
        let schema = json!({"properties": {"x": schema}, "$defs": {"count": {"type": "integer"}}});
        let tools = ToolTable::new(&[json!({"type": "function", "function": {"name": "f", "parameters": schema}})]);
        tools.argument("f", "x").json(text)
    }

    #[test]
    fn arguments_become_what_they_may_be() {
        for (schema, text, wanted) in [
            (json!({"type": "string"}), "5", "\"5\""),
            (json!({"type": "string"}), " a \"b\"\n", "\" a \\\"b\\\"\\n\""),
            (json!({"type": "integer"}), " 5\n", "5"),
            (json!({"type": "number"}), "1234567890123456789012.50", "1234567890123456789012.50"),
            (json!({"type": "integer"}), "five", "\"five\""),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "5", "\"5\""),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"anyOf": [{"type": "string"}, {"type": "number"}]}), "5", "5"),
            (json!({"enum": ["1", "2"]}), "1", "\"1\""),
            (json!({"$ref": "#/$defs/count"}), "7", "7"),
            (json!({"type": "array"}), "[1, \"a\"]", "[1, \"a\"]"),
            (json!({"type": "object"}), "{\"a\": {}}", "{\"a\": {}}"),
            (json!({}), "5", "5"),
            (json!({}), "\"quoted\"", "\"\\\"quoted\\\"\""),
            (json!({}), "words", "\"words\""),
        ] {
            assert_eq!(written(&schema, text), wanted, "{schema} {text:?}");
        }
    }

    #[test]
    fn tools_are_found_by_name_in_every_shape() {
        let tools = ToolTable::new(&[
            json!({"type": "function", "function": {"name": "a"}}),
            json!({"type": "function", "name": "b", "parameters": {"properties": {"x": {"type": "string"}}}}),
            json!({"name": "c", "input_schema": {"properties": {"x": {"type": "string"}}}}),
            json!({"type": "web_search"}),
            json!(7),
        ]);
        assert!(["a", "b", "c"].iter().all(|name| tools.has(name)) && !tools.has("d"));
        assert!(tools.argument("b", "x").is_text() && tools.argument("c", "x").is_text());
        assert!(!tools.argument("a", "x").is_text());
    }

    #[test]
    fn schemas_that_refer_to_themselves_end() {
        let schema = json!({"properties": {"x": {"$ref": "#/properties/x", "anyOf": [{"$ref": "#/properties/x"}]}}});
        assert_eq!(parameters(&schema)["x"], ArgumentTypes::default());
    }
}
