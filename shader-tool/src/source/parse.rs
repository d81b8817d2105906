//! Declarations of a flat Metal source: just enough structure for the manifest, the lint and the translation.
//! What this reader does not understand it leaves to clang.

use super::flatten::Flat;
use super::lexer::{Kind, Lexed, Token, lex};
use crate::Diagnostic;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A range of token indices.
pub(crate) type Tokens = Range<usize>;

/// A function with a body.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub name: String,
    pub is_kernel: bool,
    /// Inside `template <...>`, without the brackets.
    pub template: Option<Tokens>,
    /// Inside the parameter list's parentheses.
    pub parameters: Tokens,
    /// Inside the body's braces.
    pub body: Tokens,
    pub start: usize,
    /// `kernel` and attributes before the parameter list.
    pub markers: Vec<Tokens>,
    pub max_threads: Option<String>,
}

/// A kernel's parameter.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    /// The type as written.
    pub ty: String,
    pub name: String,
    /// `buffer`, `thread_position_in_grid`, ... or empty.
    pub attribute: String,
    /// The attribute's argument, or empty.
    pub argument: String,
    /// Names a function constant that decides whether the argument exists.
    pub optional: bool,
    /// The attribute with its brackets.
    pub attribute_tokens: Option<Tokens>,
}

/// `constant T name [[function_constant(n)]];`
#[derive(Debug, Clone)]
pub(crate) struct FunctionConstant {
    pub index: u32,
    pub name: String,
    pub ty: String,
    pub tokens: Tokens,
}

/// A program-scope constant whose initializer mentions a function constant.
#[derive(Debug, Clone)]
pub(crate) struct DerivedConstant {
    pub name: String,
    pub ty: String,
    pub value: String,
    pub tokens: Tokens,
}

/// `template [[host_name("h")]] [[kernel]] decltype(f<args>) f<args>;`
#[derive(Debug, Clone)]
pub(crate) struct Instantiation {
    pub host_name: String,
    pub function: String,
    pub arguments: String,
    pub tokens: Tokens,
}

/// A threadgroup variable of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct ThreadgroupVariable {
    pub name: String,
    /// The element type, as written.
    pub ty: String,
    /// `[A][B]`, or empty.
    pub dimensions: String,
}

/// One statement `alignas(n) threadgroup T a[N], b;`.
#[derive(Debug, Clone)]
pub(crate) struct ThreadgroupDeclaration {
    pub tokens: Tokens,
    pub aligned: bool,
    /// At the outermost level of its function's body.
    pub outermost: bool,
    pub variables: Vec<ThreadgroupVariable>,
}

/// One translation unit.
#[derive(Debug)]
pub(crate) struct Unit {
    pub flat: Flat,
    pub tokens: Vec<Token>,
    pub directives: Vec<Range<usize>>,
    pub functions: Vec<Function>,
    pub constants: Vec<FunctionConstant>,
    pub derived: Vec<DerivedConstant>,
    pub instantiations: Vec<Instantiation>,
    /// What each named declaration (function, type, constant) mentions.
    mentions: HashMap<String, HashSet<String>>,
    errors: Vec<Diagnostic>,
}

impl Unit {
    pub fn parse(flat: Flat) -> Result<Self, Vec<Diagnostic>> {
        let Lexed { tokens, directives } = lex(&flat.text);
        let mut unit = Self {
            flat,
            tokens,
            directives,
            functions: Vec::new(),
            constants: Vec::new(),
            derived: Vec::new(),
            instantiations: Vec::new(),
            mentions: HashMap::new(),
            errors: Vec::new(),
        };
        unit.check_balance();
        if unit.errors.is_empty() {
            unit.scope(0..unit.tokens.len());
        }
        if unit.errors.is_empty() {
            Ok(unit)
        } else {
            Err(unit.errors)
        }
    }

    /// The text of token `i`; empty past the end.
    pub fn word(&self, i: usize) -> &str {
        self.tokens.get(i).map_or("", |t| &self.flat.text[t.start..t.end])
    }

    pub fn is_identifier(&self, i: usize) -> bool {
        self.tokens.get(i).is_some_and(|t| t.kind == Kind::Identifier)
    }

    /// The source text that `range` covers.
    pub fn text(&self, range: Tokens) -> &str {
        match (
            self.tokens.get(range.start),
            range.end.checked_sub(1).and_then(|last| self.tokens.get(last)),
        ) {
            (Some(first), Some(last)) if range.start < range.end => &self.flat.text[first.start..last.end],
            _ => "",
        }
    }

    pub fn bytes(&self, range: &Tokens) -> Range<usize> {
        self.tokens[range.start].start..self.tokens[range.end - 1].end
    }

    pub fn diagnostic(&self, token: usize, message: impl Into<String>) -> Diagnostic {
        let offset = self.tokens.get(token).map_or(self.flat.text.len(), |t| t.start);
        self.flat.diagnostic(offset, message)
    }

    /// The token that closes the bracket at `open`. For `<`, only tokens that nest like template arguments count.
    pub fn close(&self, open: usize) -> usize {
        let closer = match self.word(open) {
            "(" => ")",
            "{" => "}",
            "[" => "]",
            "[[" => "]]",
            _ => ">",
        };
        let mut at = open + 1;
        while at < self.tokens.len() && self.word(at) != closer {
            at = match self.word(at) {
                "(" | "{" | "[" | "[[" => self.close(at),
                "<" if closer == ">" => self.close(at),
                _ => at,
            } + 1;
        }
        at.min(self.tokens.len())
    }

    /// Splits `range` at commas outside brackets.
    pub fn split_commas(&self, range: Tokens) -> Vec<Tokens> {
        let mut parts = Vec::new();
        let (mut start, mut at) = (range.start, range.start);
        while at < range.end {
            match self.word(at) {
                "(" | "{" | "[" | "[[" | "<" => at = self.close(at),
                "," => {
                    parts.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    /// All names reachable from `name` through bodies and initializers.
    pub fn reachable(&self, name: &str) -> HashSet<&str> {
        let mut found = HashSet::new();
        let mut queue: Vec<&str> = self
            .mentions
            .get_key_value(name)
            .map(|(key, _)| key.as_str())
            .into_iter()
            .collect();
        while let Some(next) = queue.pop() {
            if found.insert(next)
                && let Some(mentioned) = self.mentions.get(next)
            {
                queue.extend(mentioned.iter().map(String::as_str));
            }
        }
        found
    }

    /// The parameters of a kernel.
    pub fn parameters(&self, function: &Function) -> Vec<Parameter> {
        self.split_commas(function.parameters.clone())
            .into_iter()
            .map(|range| self.parameter(range))
            .collect()
    }

    fn parameter(&self, range: Tokens) -> Parameter {
        let attribute = range.clone().find(|&i| self.word(i) == "[[");
        let name = attribute.unwrap_or(range.end) - 1;
        let mut parameter = Parameter {
            ty: self.text(range.start..name).to_owned(),
            name: self.word(name).to_owned(),
            attribute: String::new(),
            argument: String::new(),
            optional: false,
            attribute_tokens: attribute.map(|open| open..self.close(open) + 1),
        };
        if let Some(open) = attribute {
            for part in self.split_commas(open + 1..self.close(open)) {
                let argument = if self.word(part.start + 1) == "(" {
                    self.text(part.start + 2..self.close(part.start + 1)).to_owned()
                } else {
                    String::new()
                };
                if self.word(part.start) == "function_constant" {
                    parameter.optional = true;
                } else {
                    parameter.attribute = self.word(part.start).to_owned();
                    parameter.argument = argument;
                }
            }
        }
        parameter
    }

    /// The threadgroup variables declared in a function.
    pub fn threadgroup_declarations(&self, function: &Function) -> Vec<ThreadgroupDeclaration> {
        let mut found = Vec::new();
        let mut depth = 0_usize;
        let mut at = function.body.start;
        while at < function.body.end {
            match self.word(at) {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            let begins_statement = matches!(self.word(at - 1), "{" | "}" | ";" | ")");
            let aligned = begins_statement && self.word(at) == "alignas";
            let space = if aligned { self.close(at + 1) + 1 } else { at };
            if begins_statement && self.word(space) == "threadgroup" {
                let end = (space..function.body.end)
                    .find(|&i| self.word(i) == ";")
                    .unwrap_or(function.body.end);
                if let Some(variables) = self.threadgroup_variables(space + 1..end) {
                    found.push(ThreadgroupDeclaration {
                        tokens: at..end + 1,
                        aligned,
                        outermost: depth == 0,
                        variables,
                    });
                }
                at = end;
            }
            at += 1;
        }
        found
    }

    /// `T a[N], b` without pointers, references or initializers: memory, rather than a name for memory.
    fn threadgroup_variables(&self, range: Tokens) -> Option<Vec<ThreadgroupVariable>> {
        let mut declarators = self.split_commas(range);
        let first = declarators.first()?.clone();
        // The first declarator carries the type: its name is the identifier before the dimensions or at the end.
        let name = (first.start + 1..first.end).rev().find(|&i| {
            self.is_identifier(i) && (i + 1 == first.end || self.word(i + 1) == "[") && !self.inside_brackets(&first, i)
        })?;
        let ty = self.text(first.start..name).to_owned();
        if ty.contains(['*', '&', '=']) || self.text(first.clone()).contains('=') {
            return None;
        }
        declarators[0] = name..first.end;
        let variable = |declarator: &Tokens| ThreadgroupVariable {
            name: self.word(declarator.start).to_owned(),
            ty: ty.clone(),
            dimensions: self.text(declarator.start + 1..declarator.end).to_owned(),
        };
        Some(declarators.iter().map(variable).collect())
    }

    fn inside_brackets(&self, range: &Tokens, token: usize) -> bool {
        let mut at = range.start;
        while at < token {
            if matches!(self.word(at), "[" | "<" | "(") {
                at = self.close(at);
                if at > token {
                    return true;
                }
            }
            at += 1;
        }
        false
    }

    fn check_balance(&mut self) {
        let mut open: Vec<usize> = Vec::new();
        for i in 0..self.tokens.len() {
            match self.word(i) {
                "(" | "{" | "[" | "[[" => open.push(i),
                closer @ (")" | "}" | "]" | "]]") => {
                    let matches = open.pop().is_some_and(|o| {
                        matches!(
                            (self.word(o), closer),
                            ("(", ")") | ("{", "}") | ("[", "]") | ("[[", "]]")
                        )
                    });
                    if !matches {
                        let message = format!("'{closer}' closes nothing (brackets must balance in every #if branch)");
                        self.errors.push(self.diagnostic(i, message));
                        return;
                    }
                }
                _ => {}
            }
        }
        if let Some(&i) = open.last() {
            self.errors
                .push(self.diagnostic(i, format!("'{}' is never closed", self.word(i))));
        }
    }

    /// Reads the declarations of a namespace or of the whole file.
    fn scope(&mut self, range: Tokens) {
        let mut at = range.start;
        while at < range.end {
            let opens_scope =
                self.word(at) == "namespace" || self.word(at) == "inline" && self.word(at + 1) == "namespace";
            if opens_scope || self.word(at) == "extern" && self.word(at + 1).starts_with('"') {
                let body = (at..range.end).find(|&i| matches!(self.word(i), "{" | ";" | "="));
                if let Some(open) = body.filter(|&i| self.word(i) == "{") {
                    let close = self.close(open);
                    self.scope(open + 1..close);
                    at = close + 1;
                    continue;
                }
            }
            let (end, body) = self.declaration_end(at, range.end);
            if at < end {
                self.declaration(at..end, body);
            }
            at = end.max(at + 1);
        }
    }

    /// Where the declaration that starts at `start` ends, and its body, if it has one.
    fn declaration_end(&self, start: usize, limit: usize) -> (usize, Option<Tokens>) {
        let (mut at, mut body) = (start, None);
        while at < limit {
            match self.word(at) {
                "(" | "[[" | "[" => at = self.close(at),
                "{" => {
                    let close = self.close(at);
                    let initializer = self.word(at - 1) == "=";
                    if !initializer && body.is_none() {
                        body = Some(at + 1..close);
                    }
                    at = close;
                    if !initializer && self.word(at + 1) != ";" {
                        return (at + 1, body);
                    }
                }
                ";" => return (at + 1, body),
                _ => {}
            }
            at += 1;
        }
        (limit, body)
    }

    fn declaration(&mut self, range: Tokens, body: Option<Tokens>) {
        if self.word(range.start) == "template" && self.word(range.start + 1) != "<" {
            self.instantiation(range);
            return;
        }
        let Some(body) = body else {
            self.constant(range);
            return;
        };
        let name = match self.function(range.clone(), body.clone()) {
            Some(function) => {
                let name = function.name.clone();
                self.functions.push(function);
                name
            }
            // A type: its members' bodies count as its own.
            None => (range.start..body.start - 1)
                .find(|&i| matches!(self.word(i), "struct" | "class" | "union" | "enum"))
                .map_or(String::new(), |i| self.word(i + 1).to_owned()),
        };
        self.record_mentions(name, range);
    }

    fn record_mentions(&mut self, name: String, range: Tokens) {
        let words: Vec<String> = range
            .filter(|&i| self.is_identifier(i))
            .map(|i| self.word(i).to_owned())
            .collect();
        self.mentions.entry(name).or_default().extend(words);
    }

    fn function(&self, range: Tokens, body: Tokens) -> Option<Function> {
        let mut at = range.start;
        let mut template = None;
        while self.word(at) == "template" {
            let close = self.close(at + 1);
            template = Some(at + 2..close);
            at = close + 1;
        }
        let (mut is_kernel, mut max_threads, mut markers) = (false, None, Vec::new());
        while at < body.start - 1 {
            match self.word(at) {
                "kernel" => {
                    is_kernel = true;
                    markers.push(at..at + 1);
                }
                "struct" | "class" | "union" | "enum" | "=" => return None,
                "[[" => {
                    markers.push(at..self.close(at) + 1);
                    for part in self.split_commas(at + 1..self.close(at)) {
                        match self.word(part.start) {
                            "kernel" => is_kernel = true,
                            "max_total_threads_per_threadgroup" => {
                                max_threads = Some(self.text(part.start + 2..part.end - 1).to_owned());
                            }
                            _ => {}
                        }
                    }
                    at = self.close(at);
                }
                "(" if matches!(self.word(at - 1), "alignas" | "decltype" | "__attribute__") => at = self.close(at),
                "(" => {
                    return Some(Function {
                        name: self.word(at - 1).to_owned(),
                        is_kernel,
                        template,
                        parameters: at + 1..self.close(at),
                        body,
                        start: range.start,
                        markers,
                        max_threads,
                    });
                }
                "<" => at = self.close(at),
                _ => {}
            }
            at += 1;
        }
        None
    }

    fn instantiation(&mut self, range: Tokens) {
        let (mut host_name, mut function, mut arguments) = (None, String::new(), String::new());
        let mut at = range.start + 1;
        while at < range.end {
            if self.word(at) == "[[" {
                let close = self.close(at);
                if let Some(i) = (at..close).find(|&i| self.word(i) == "host_name") {
                    // Adjacent literals concatenate.
                    let parts = (i + 2..close).take_while(|&j| self.tokens[j].kind == Kind::Text);
                    host_name = Some(parts.map(|j| self.word(j).trim_matches('"')).collect::<String>());
                }
                at = close;
            } else if self.is_identifier(at) && self.word(at + 1) == "<" {
                let close = self.close(at + 1);
                function = self.word(at).to_owned();
                arguments = self.text(at + 2..close).to_owned();
                if self.word(at - 1) != "(" {
                    break; // The declarator itself; `decltype(f<...>)` came before it.
                }
                at = close;
            }
            at += 1;
        }
        match host_name {
            Some(host_name) => {
                self.instantiations.push(Instantiation {
                    host_name,
                    function,
                    arguments,
                    tokens: range,
                });
            }
            None => self.errors.push(self.diagnostic(
                range.start,
                "an explicit instantiation needs [[host_name(\"...\")]], or its kernel cannot be asked for",
            )),
        }
    }

    fn constant(&mut self, range: Tokens) {
        if let Some(i) = range.clone().find(|&i| self.word(i) == "function_constant") {
            // constant T name [[function_constant(n)]];
            let (name, index) = (self.word(i - 2).to_owned(), self.word(i + 2).parse());
            match index {
                Ok(index) => self.constants.push(FunctionConstant {
                    index,
                    name,
                    ty: self.text(range.start + 1..i - 2).to_owned(),
                    tokens: range,
                }),
                Err(_) => {
                    self.errors
                        .push(self.diagnostic(i, "function_constant needs a plain number as its index"));
                }
            }
            return;
        }
        let Some(equals) = range.clone().find(|&i| self.word(i) == "=") else {
            return;
        };
        let name_token = (range.start..equals)
            .rev()
            .find(|&i| self.is_identifier(i) && self.word(i + 1) != "]");
        let Some(name_token) = name_token else { return };
        let name = self.word(name_token).to_owned();
        let value = equals + 1..range.end - 1;
        let from_constant = value.clone().any(|i| {
            let word = self.word(i);
            word == "is_function_constant_defined"
                || self.constants.iter().any(|c| c.name == word)
                || self.derived.iter().any(|c| c.name == word)
        });
        if from_constant && self.word(range.start) == "constant" {
            self.derived.push(DerivedConstant {
                name: name.clone(),
                ty: self.text(range.start + 1..name_token).to_owned(),
                value: self.text(value).to_owned(),
                tokens: range.clone(),
            });
        }
        self.record_mentions(name, range);
    }
}
