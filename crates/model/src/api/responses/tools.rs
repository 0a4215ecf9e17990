//! Tools in the shape that this endpoint has, made into the functions of a chat.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::ApiError;
use super::super::tools::{NAME_BYTES, as_function, check_count, hosted};

/// Tools that a server runs by itself, if it has them.
pub(in super::super) const HOSTED: [&str; 6] =
    ["web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search"];

/// What came of a request's tools.
#[derive(Default)]
pub(super) struct Tools {
    /// Functions in the chat's shape.
    pub(super) functions: Vec<Value>,
    /// The same in this endpoint's.
    pub(super) told: Vec<Value>,
    /// Where the parameters of each stand.
    pub(super) places: Vec<String>,
    /// Names of functions that are in a namespace, and how long its own is.
    pub(super) inside: Vec<(Box<str>, usize)>,
    /// What the model is not told of.
    pub(super) left_out: Vec<&'static str>,
}

impl Tools {
    pub(super) fn read(all: &[Value]) -> Result<Tools, ApiError> {
        let mut tools = Tools::default();
        for (at, tool) in all.iter().enumerate() {
            tools.add(at, tool)?;
        }
        match tools.twice() {
            Some(name) => Err(ApiError::invalid("tools", format!("tools: there are two functions `{name}`"))),
            None => Ok(tools),
        }
    }

    fn add(&mut self, at: usize, tool: &Value) -> Result<(), ApiError> {
        check_count(self.functions.len() + 1)?;
        match tool["type"].as_str() {
            Some("function") => {
                let function = as_function(tool, "parameters");
                self.functions.push(function.map_err(|why| wrong(at, &why))?);
                self.places.push(format!("tools[{at}].parameters"));
            }
            Some("namespace") => self.add_namespace(at, tool)?,
            Some(other) => {
                if let Some(name) = hosted(other, &HOSTED) {
                    self.left_out.push(name);
                    return Ok(());
                }
                let what = format!("a tool of type `{other}` (tools[{at}]; the model can call functions)");
                return Err(ApiError::not_supported("tools", &what));
            }
            None => {
                return Err(ApiError::invalid(
                    "tools",
                    format!("tools[{at}]: expected an object with a type"),
                ));
            }
        }
        self.told.push(tool.clone());
        Ok(())
    }

    /// The functions in a namespace are others with longer names.
    fn add_namespace(&mut self, at: usize, space: &Value) -> Result<(), ApiError> {
        let name = space["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong(at, "expected a namespace with a name"))?;
        let inside = space["tools"].as_array().ok_or_else(|| wrong(at, "tools: expected a list"))?;
        // Before each of them gets a copy of a name that may be long.
        check_count(self.functions.len() + inside.len())?;
        if !NAME_BYTES.contains(&name.len()) {
            return Err(wrong(at, "expected a namespace with a name of 1 to 256 bytes"));
        }
        for (place, tool) in inside.iter().enumerate() {
            if tool["type"] != "function" {
                return Err(wrong(at, "tools: expected functions"));
            }
            let mut function = as_function(tool, "parameters").map_err(|why| wrong(at, &why))?;
            let own = tool["name"].as_str().unwrap_or_default();
            let full = full_name(Some(&space["name"]), own);
            function["function"]["name"] = json!(full);
            self.functions.push(function);
            self.places.push(format!("tools[{at}].tools[{place}].parameters"));
            self.inside.push((full.into(), name.len()));
        }
        Ok(())
    }

    /// A function in a namespace that is called as another.
    fn twice(&self) -> Option<&str> {
        let mut seen = BTreeSet::new();
        let names = self.functions.iter().filter_map(|function| function["function"]["name"].as_str());
        let mut again = names.filter(|name| !seen.insert(*name));
        let inside: BTreeSet<&str> = self.inside.iter().map(|(name, _)| &**name).collect();
        again.find(|name| inside.contains(name))
    }
}

fn wrong(at: usize, why: &str) -> ApiError {
    ApiError::invalid("tools", format!("tools[{at}]: {why}"))
}

/// As the model knows a function that may be in a namespace.
pub(super) fn full_name(namespace: Option<&Value>, name: &str) -> String {
    match namespace.and_then(Value::as_str) {
        Some(namespace) if !name.is_empty() => format!("{namespace}.{name}"),
        _ => name.to_owned(),
    }
}

/// In the chat's shape; what is wrong with it is found there.
pub(super) fn choice(choice: &Value) -> Result<Value, ApiError> {
    let named = |tool: &Value| {
        let name = tool["name"].as_str().map(|name| full_name(tool.get("namespace"), name));
        json!({"type": "function", "function": {"name": name}})
    };
    match choice["type"].as_str() {
        Some("function") => Ok(named(choice)),
        Some("allowed_tools") => {
            let tools: Vec<Value> = choice["tools"].as_array().into_iter().flatten().map(named).collect();
            Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}}))
        }
        Some(other) => Err(ApiError::not_supported("tool_choice", &format!("a tool of type `{other}`"))),
        None => Ok(choice.clone()),
    }
}
