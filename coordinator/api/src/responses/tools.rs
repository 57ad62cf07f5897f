//! The tools of a request of the Responses API: functions, tools that take free text, namespaces of both, and those that
//! only OpenAI runs.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// Tools that are run by the service of OpenAI itself. Nobody here can run them, so the model is not told of them; a request
/// that insists on one is refused.
const HOSTED: [&str; 8] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer_use_preview",
    "mcp",
    "local_shell",
];

/// The argument of a tool that takes free text.
pub(super) const FREE_TEXT: &str = "input";

/// The tools that may be called.
#[derive(Debug, Clone, Default)]
pub(super) struct OfferedTools {
    sent: Vec<Value>,
    chat: Vec<Value>,
    /// Names of those that take free text.
    custom: Vec<String>,
    /// Names of those that came in a namespace, and the namespace's.
    namespaces: Vec<(String, String)>,
}

impl OfferedTools {
    pub(super) fn new(sent: &[Value]) -> Result<Self> {
        let mut tools = Self { sent: sent.to_vec(), ..Self::default() };
        for (index, tool) in sent.iter().enumerate() {
            let place = format!("tools[{index}]");
            match tool["type"].as_str() {
                Some("namespace") => tools.offer_namespace(&place, tool)?,
                Some(kind) if HOSTED.iter().any(|hosted| kind == *hosted || kind.starts_with("web_search_preview")) => {
                }
                _ => tools.offer(&place, tool, "\"function\", \"custom\" or \"namespace\"")?,
            }
        }
        Ok(tools)
    }

    /// The model sees the tools of a namespace as any others; whoever sent them is told which namespace a call is in.
    fn offer_namespace(&mut self, place: &str, namespace: &Value) -> Result<()> {
        let own = name_of(place, namespace)?;
        let place = format!("{place}.tools");
        let missing = || Error::parameter(&place, format!("{place} is missing or no list"));
        for (index, tool) in namespace["tools"].as_array().ok_or_else(missing)?.iter().enumerate() {
            let place = format!("{place}[{index}]");
            self.offer(&place, tool, "\"function\" or \"custom\"")?;
            self.namespaces.push((name_of(&place, tool)?.to_owned(), own.to_owned()));
        }
        Ok(())
    }

    fn offer(&mut self, place: &str, tool: &Value, possible: &str) -> Result<()> {
        match tool["type"].as_str() {
            Some("function") => self.chat.push(function(place, tool)?),
            Some("custom") => {
                self.custom.push(name_of(place, tool)?.to_owned());
                self.chat.push(custom(place, tool)?);
            }
            _ => {
                let param = format!("{place}.type");
                return Err(Error::unsupported(&param, format!("{param} is {}, it must be {possible}", tool["type"])));
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chat.is_empty()
    }

    /// As chat requests have them.
    pub(super) fn for_chat(&self) -> Vec<Value> {
        self.chat.clone()
    }

    /// As they were sent.
    pub(super) fn as_sent(&self) -> &[Value] {
        &self.sent
    }

    /// Whether the tool takes free text.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.custom.iter().any(|custom| custom == name)
    }

    /// The namespace that a tool came in, if any.
    pub(super) fn namespace_of(&self, name: &str) -> Option<&str> {
        self.namespaces.iter().find(|(tool, _)| tool == name).map(|(_, namespace)| namespace.as_str())
    }

    /// Which tools must be used, as chat requests say it.
    pub(super) fn choice(&self, choice: &Value) -> Result<Value> {
        match (choice.as_str(), choice["type"].as_str(), choice["name"].as_str()) {
            (Some("auto" | "none" | "required"), _, _) => Ok(choice.clone()),
            (None, Some("function" | "custom"), Some(name)) => {
                Ok(json!({ "type": "function", "function": { "name": name } }))
            }
            _ => {
                let problem = "tool_choice must be \"auto\", \"none\", \"required\", or a function with its name";
                Err(Error::parameter("tool_choice", problem))
            }
        }
    }
}

fn function(place: &str, tool: &Value) -> Result<Value> {
    let mut function = Map::new();
    function.insert("name".to_owned(), name_of(place, tool)?.into());
    for name in ["description", "parameters", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value.clone());
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// Free text is the one argument of a function.
fn custom(place: &str, tool: &Value) -> Result<Value> {
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(definition) = tool["format"]["definition"].as_str() {
        description += "\nThe input follows this grammar:\n";
        description += definition;
    }
    let parameters =
        json!({ "type": "object", "properties": { FREE_TEXT: { "type": "string" } }, "required": [FREE_TEXT] });
    let name = name_of(place, tool)?;
    Ok(
        json!({ "type": "function", "function": { "name": name, "description": description, "parameters": parameters } }),
    )
}

fn name_of<'t>(place: &str, tool: &'t Value) -> Result<&'t str> {
    tool["name"].as_str().filter(|name| !name.is_empty()).ok_or_else(|| {
        let param = format!("{place}.name");
        Error::parameter(&param, format!("{param} is missing or no text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_free_text_are_offered_and_what_openai_runs_is_not() {
        let sent = [
            json!({ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": null }),
            json!({ "type": "custom", "name": "patch", "format": { "type": "grammar", "definition": "start: x" } }),
            json!({ "type": "web_search" }),
            json!({ "type": "namespace", "name": "agents", "description": "d", "tools": [{ "type": "function", "name": "spawn" }] }),
        ];
        let tools = OfferedTools::new(&sent).unwrap();
        let names: Vec<Value> = tools.for_chat().iter().map(|tool| tool["function"]["name"].clone()).collect();
        assert_eq!(names, ["f", "patch", "spawn"]);
        assert_eq!((tools.namespace_of("spawn"), tools.namespace_of("f")), (Some("agents"), None));
        let namespace =
            |tools: Value| OfferedTools::new(&[json!({ "type": "namespace", "name": "n", "tools": tools })]);
        assert!(
            namespace(json!(5)).is_err()
                && namespace(json!([{ "type": "namespace", "name": "m", "tools": [] }])).is_err()
        );
        assert!(tools.is_custom("patch") && !tools.is_custom("f"));
        assert_eq!(tools.as_sent(), sent);
        assert!(OfferedTools::new(&[json!({ "type": "telepathy", "name": "t" })]).is_err());
        assert!(OfferedTools::new(&[json!({ "type": "function" })]).is_err());
    }

    #[test]
    fn a_choice_names_a_function() {
        let tools = OfferedTools::default();
        let named = tools.choice(&json!({ "type": "function", "name": "f" })).unwrap();
        assert_eq!(named, json!({ "type": "function", "function": { "name": "f" } }));
        assert_eq!(tools.choice(&json!("required")).unwrap(), "required");
        assert!(tools.choice(&json!({ "type": "web_search" })).is_err());
        assert!(tools.choice(&json!("some")).is_err());
    }
}
