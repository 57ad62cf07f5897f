//! What an answer must look like: JSON schemas, regular expressions, choices and grammars, as several APIs ask for them.

use paceline_grammar::{Grammar, Speller, quoted};
use paceline_proto::ConstraintSettings;
use paceline_text::{AnswerFormat, CallRule, Callable, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::wishes::{ToolChoice, Wishes};

/// The fields that ask for a structure, under all the names that they have.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(crate) struct StructureFields {
    response_format: Option<Value>,
    structured_outputs: Option<Value>,
    json_schema: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    grammar: Option<String>,
    guided_grammar: Option<String>,
}

/// What a text must look like.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Structure {
    /// The field that asks for it.
    param: String,
    form: Form,
}

#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// JSON of a schema.
    Json(Value),
    /// A regular expression.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
    /// A grammar in Lark's syntax.
    Lark(String),
}

impl StructureFields {
    /// What is asked for.
    ///
    /// # Errors
    /// Fields that cannot be understood, and more than one wish.
    pub(crate) fn structure(self) -> Result<Option<Structure>> {
        let text = |param: &str, text: Option<String>| {
            text.filter(|text| !text.is_empty()).map(|text| (param.to_owned(), text))
        };
        let schema = |param: &str, value: Option<Value>| value.map(|value| schema(param, value)).transpose();
        let expression = text("guided_regex", self.guided_regex).or(text("regex", self.regex));
        let lark = text("grammar", self.grammar).or(text("guided_grammar", self.guided_grammar));
        let wishes = [
            self.response_format.map_or(Ok(None), |format| response_format(&format))?,
            self.structured_outputs.map_or(Ok(None), |outputs| structured_outputs(&outputs))?,
            schema("json_schema", self.json_schema)?,
            schema("guided_json", self.guided_json)?,
            expression.map(|(param, text)| Structure { param, form: Form::Regex(text) }),
            self.guided_choice
                .map(|choices| Structure { param: "guided_choice".to_owned(), form: Form::Choice(choices) }),
            lark.map(|(param, text)| lark_form(param, text)).transpose()?,
        ];
        let mut wishes = wishes.into_iter().flatten();
        let Some(first) = wishes.next() else { return Ok(None) };
        match wishes.next() {
            None => Ok(Some(first)),
            Some(second) => {
                let problem = format!("{} and {} ask for two structures at once", first.param, second.param);
                Err(Error::parameter(second.param, problem))
            }
        }
    }
}

impl Structure {
    /// JSON of a schema, which `param` asks for.
    pub(crate) fn json(param: &str, schema: Value) -> Self {
        Self { param: param.to_owned(), form: Form::Json(schema) }
    }

    fn grammar(&self) -> paceline_grammar::Result<Grammar> {
        match &self.form {
            Form::Json(schema) => Grammar::json_schema(schema),
            Form::Regex(expression) => Grammar::regex(expression),
            Form::Choice(choices) => Grammar::choice(choices),
            Form::Lark(text) => Grammar::lark(text),
        }
    }

    /// It as one alternative of a rule.
    fn alternative(&self) -> Result<String> {
        match &self.form {
            Form::Json(schema) => Ok(format!("%json {schema}")),
            Form::Choice(choices) => Ok(choices.iter().map(|choice| quoted(choice)).collect::<Vec<_>>().join(" | ")),
            Form::Regex(_) | Form::Lark(_) => {
                let problem = format!("{} cannot be combined with tools; send a JSON schema, or no tools", self.param);
                Err(Error::unsupported(&self.param, problem))
            }
        }
    }
}

/// What must hold of an answer, for the tail: the structure, and the calls that must be made or be made strictly.
///
/// # Errors
/// What no text can look like, naming the field and the reason.
pub(crate) fn constraint(
    wishes: &Wishes,
    format: &AnswerFormat,
    tokenizer: &Tokenizer,
    tools: Option<&[Value]>,
) -> Result<Option<Box<ConstraintSettings>>> {
    let rule = call_rule(wishes, tools.unwrap_or_default());
    if wishes.structure.is_none() && rule.is_none() {
        return Ok(None);
    }
    let speller = tokenizer.speller()?;
    let (param, grammar) = match rule {
        None => match &wishes.structure {
            Some(structure) => (structure.param.as_str(), structure.grammar()),
            None => return Ok(None),
        },
        Some(rule) => {
            let tools = callable(wishes, tools.unwrap_or_default(), format, tokenizer, &speller)?;
            let instead = wishes.structure.as_ref().filter(|_| wishes.tool_choice == ToolChoice::Auto);
            let instead = instead.map(Structure::alternative).transpose()?;
            let tools: Vec<Callable<'_>> = tools.iter().map(Tool::callable).collect();
            match format.call_grammar(tokenizer, &tools, rule, instead.as_deref()) {
                Some(text) => ("tools", Grammar::lark(&text)),
                // Where calls begin with nothing that text could not begin with, strictness is up to the model.
                None => return Ok(None),
            }
        }
    };
    let grammar = grammar.and_then(|grammar| speller.follow(&grammar).map(|_| grammar));
    let grammar = grammar.map_err(|error| Error::parameter(param, format!("{param} cannot be followed: {error}")))?;
    let ends = tokenizer.end_of_generation().to_vec();
    Ok(Some(Box::new(ConstraintSettings { grammar: grammar.text().to_owned(), ends })))
}

/// What the grammar must say of calls; nothing if it need not.
fn call_rule(wishes: &Wishes, tools: &[Value]) -> Option<CallRule> {
    match wishes.tool_choice {
        _ if tools.is_empty() => None,
        ToolChoice::None => None,
        ToolChoice::Named(_) => Some(CallRule::One),
        ToolChoice::Required if wishes.one_call => Some(CallRule::One),
        ToolChoice::Required => Some(CallRule::Some),
        // The text is the structure, or else there are calls.
        ToolChoice::Auto if wishes.structure.is_some() => Some(CallRule::Some),
        ToolChoice::Auto => tools.iter().any(is_strict).then_some(CallRule::TextAndCalls),
    }
}

/// A tool that may be called.
struct Tool {
    name: String,
    parameters: Option<Value>,
}

impl Tool {
    fn callable(&self) -> Callable<'_> {
        Callable { name: &self.name, parameters: self.parameters.as_ref() }
    }
}

/// The tools that may be called. Arguments of strict ones must follow their schemas; those of others as well, where their
/// schemas can be followed.
fn callable(
    wishes: &Wishes,
    tools: &[Value],
    format: &AnswerFormat,
    tokenizer: &Tokenizer,
    speller: &Speller,
) -> Result<Vec<Tool>> {
    let mut found = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        if matches!(&wishes.tool_choice, ToolChoice::Named(wanted) if *wanted != name) {
            continue;
        }
        let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
        let alone = Tool { name, parameters };
        let rules = format.call_grammar(tokenizer, &[alone.callable()], CallRule::One, None).unwrap_or_default();
        let possible = Grammar::lark(&rules).and_then(|grammar| speller.follow(&grammar));
        found.push(match possible {
            Ok(_) => alone,
            Err(error) if is_strict(tool) => {
                let param = format!("tools[{index}].function.parameters");
                return Err(Error::parameter(&param, format!("{param} cannot be followed strictly: {error}")));
            }
            Err(_) => Tool { parameters: None, ..alone },
        });
    }
    Ok(found)
}

fn is_strict(tool: &Value) -> bool {
    tool.get("function").unwrap_or(tool)["strict"] == true
}

/// A schema, which some clients send as text.
fn schema(param: &str, value: Value) -> Result<Structure> {
    let value = match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| Error::parameter(param, format!("{param} is no JSON schema: {error}")))?,
        value => value,
    };
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Structure::json(param, value)),
        _ => Err(Error::parameter(param, format!("{param} is no JSON schema, it must be an object"))),
    }
}

fn lark_form(param: String, text: String) -> Result<Structure> {
    if text.contains("::=") {
        let problem =
            format!("{param} is in another syntax; send rules like \"start: \\\"a\\\" | /[0-9]+/\", as Lark has them");
        return Err(Error::unsupported(&param, problem));
    }
    Ok(Structure { param, form: Form::Lark(text) })
}

fn response_format(format: &Value) -> Result<Option<Structure>> {
    const PARAM: &str = "response_format";
    let wanted = |name: &str| {
        let param = format!("{PARAM}.{name}");
        let found = format.get(name).and_then(Value::as_str).map(str::to_owned);
        found.ok_or_else(|| Error::parameter(&param, format!("{param} is missing or no text")))
    };
    match format.get("type").and_then(Value::as_str) {
        None if format.is_null() => Ok(None),
        Some("text") => Ok(None),
        Some("json_object") => {
            let any = || json!({"type": "object"});
            schema("response_format.schema", format.get("schema").cloned().unwrap_or_else(any)).map(Some)
        }
        Some("json_schema") => {
            let inner = format.get("json_schema").unwrap_or(format);
            let param = "response_format.json_schema.schema";
            let found = inner.get("schema").cloned();
            let missing = || Error::parameter(param, format!("{param} is missing, send a JSON schema"));
            schema(param, found.ok_or_else(missing)?).map(Some)
        }
        Some("regex") => {
            let form = Form::Regex(wanted("pattern")?);
            Ok(Some(Structure { param: "response_format.pattern".to_owned(), form }))
        }
        Some("grammar") => lark_form("response_format.grammar".to_owned(), wanted("grammar")?).map(Some),
        other => {
            let problem = format!(
                "{PARAM}.type is {}, it must be \"text\", \"json_object\", \"json_schema\", \"regex\" or \"grammar\"",
                other.map_or_else(|| "missing".to_owned(), |other| format!("{other:?}"))
            );
            Err(Error::parameter("response_format.type", problem))
        }
    }
}

/// All of them in one object, under shorter names.
fn structured_outputs(outputs: &Value) -> Result<Option<Structure>> {
    let field = |name: &str| format!("structured_outputs.{name}");
    let text = |name: &str| outputs.get(name).and_then(Value::as_str).map(str::to_owned);
    if let Some(value) = outputs.get("json").filter(|value| !value.is_null()) {
        return schema(&field("json"), value.clone()).map(Some);
    }
    if let Some(expression) = text("regex") {
        return Ok(Some(Structure { param: field("regex"), form: Form::Regex(expression) }));
    }
    if let Some(rules) = text("grammar") {
        return lark_form(field("grammar"), rules).map(Some);
    }
    if let Some(choices) = outputs.get("choice").and_then(Value::as_array) {
        let choices = choices.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return Ok(Some(Structure { param: field("choice"), form: Form::Choice(choices) }));
    }
    if outputs.get("json_object") == Some(&Value::Bool(true)) {
        return Ok(Some(Structure::json(&field("json_object"), json!({"type": "object"}))));
    }
    if outputs.is_null() {
        return Ok(None);
    }
    let problem = "structured_outputs has none of \"json\", \"regex\", \"choice\", \"grammar\" and \"json_object\"";
    Err(Error::parameter("structured_outputs", problem.to_owned()))
}
