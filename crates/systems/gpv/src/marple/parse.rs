//! A query's tree.

use super::error::QueryError;
use super::token::{Placed, Token, tokens};

/// Brackets and blocks inside one another.
const DEPTH_MAX: usize = 48;
/// Operators inside one another: what walks a tree goes as deep.
const OPERATORS_MAX: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Eq,
    Ne,
    Lt,
    Gt,
    Le,
    Ge,
    /// Whether one number of 32 bits comes before another in a sequence that wraps (RFC 9293, section 3.4).
    Before,
    And,
    Or,
}

#[derive(Debug)]
pub(super) struct Expr<'a> {
    pub(super) at: usize,
    /// Operators inside one another, up to this one.
    depth: usize,
    pub(super) node: Node<'a>,
}

#[derive(Debug)]
pub(super) enum Node<'a> {
    Int(i64),
    Real(f64),
    Bool(bool),
    Address([u64; 2]),
    Name(&'a str),
    Not(Box<Expr<'a>>),
    Binary(Binary, Box<Expr<'a>>, Box<Expr<'a>>),
}

/// A name and where it stands.
pub(super) type Name<'a> = (&'a str, usize);

#[derive(Debug)]
pub(super) enum Statement<'a> {
    Assign(Name<'a>, Expr<'a>),
    Emit(usize),
    If(Expr<'a>, Vec<Statement<'a>>, Vec<Statement<'a>>),
}

#[derive(Debug)]
pub(super) struct Fold<'a> {
    pub(super) name: Name<'a>,
    pub(super) state: Vec<Name<'a>>,
    pub(super) columns: Vec<Name<'a>>,
    pub(super) body: Vec<Statement<'a>>,
}

#[derive(Debug)]
pub(super) enum Operator<'a> {
    Filter(Name<'a>, Expr<'a>),
    Map(Name<'a>, Vec<Name<'a>>, Vec<Expr<'a>>),
    GroupBy(Name<'a>, Vec<Name<'a>>, Name<'a>),
    Zip(Name<'a>, Name<'a>),
}

#[derive(Debug)]
pub(super) struct Tree<'a> {
    pub(super) folds: Vec<Fold<'a>>,
    pub(super) streams: Vec<(Name<'a>, Operator<'a>)>,
}

const KEYWORDS: [&str; 12] = [
    "filter", "map", "groupby", "zip", "if", "else", "def", "emit", "true", "false", "and", "or",
];

pub(super) fn parse<'a>(
    text: &'a str,
    parameters: &[(&str, &'a str)],
) -> Result<Tree<'a>, QueryError> {
    let mut parser = Parser {
        text,
        tokens: tokens(text, parameters)?,
        next: 0,
        depth: 0,
    };
    let mut tree = Tree {
        folds: Vec::new(),
        streams: Vec::new(),
    };
    while parser.is_word("def") {
        tree.folds.push(parser.fold()?);
    }
    while *parser.peek() != Token::End {
        tree.streams.push(parser.stream()?);
    }
    if tree.streams.is_empty() {
        return Err(
            parser.wrong("a query ends with a statement such as: result = filter(T, true);")
        );
    }
    Ok(tree)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Placed<'a>>,
    next: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        &self.tokens[self.next].0
    }

    fn at(&self) -> usize {
        self.tokens[self.next].1
    }

    fn is_word(&self, word: &str) -> bool {
        *self.peek() == Token::Word(word)
    }

    /// Passes the next token if it is this one.
    fn pass(&mut self, token: Token<'_>) -> bool {
        let is_it = *self.peek() == token;
        self.next = self.next.wrapping_add(usize::from(is_it));
        is_it
    }

    fn wrong(&self, message: impl Into<String>) -> QueryError {
        QueryError::new(self.text, self.at(), message)
    }

    fn expected(&self, what: &str) -> QueryError {
        let found = match self.peek() {
            Token::Word(word) => format!("\"{word}\""),
            Token::Sign(sign) => format!("\"{sign}\""),
            Token::Int(_) | Token::Real(_) => "a number".to_owned(),
            Token::Address(_) => "an address".to_owned(),
            Token::End => "the end of the query".to_owned(),
        };
        self.wrong(format!("expected {what}, found {found}"))
    }

    fn sign(&mut self, sign: &'static str) -> Result<(), QueryError> {
        match self.pass(Token::Sign(sign)) {
            true => Ok(()),
            false => Err(self.expected(&format!("\"{sign}\""))),
        }
    }

    fn name(&mut self, what: &str) -> Result<Name<'a>, QueryError> {
        match *self.peek() {
            Token::Word(word) if !KEYWORDS.contains(&word) => {
                let name = (word, self.at());
                self.next = self.next.wrapping_add(1);
                Ok(name)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// `[a, b]`.
    fn list<X>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<X, QueryError>,
    ) -> Result<Vec<X>, QueryError> {
        self.sign("[")?;
        let mut items = Vec::new();
        while *self.peek() != Token::Sign("]") {
            if !items.is_empty() {
                self.sign(",")?;
            }
            items.push(item(self)?);
        }
        self.sign("]")?;
        Ok(items)
    }

    fn fold(&mut self) -> Result<Fold<'a>, QueryError> {
        self.pass(Token::Word("def"));
        let mut name = self.name("the name of a fold")?;
        // Some published queries say that a fold is associative.
        if name.0 == "assoc" && *self.peek() != Token::Sign("(") {
            name = self.name("the name of a fold")?;
        }
        self.sign("(")?;
        let state = self.list(|parser| parser.name("a state variable"))?;
        self.sign(",")?;
        let columns = self.list(|parser| parser.name("a column"))?;
        self.sign(")")?;
        self.sign(":")?;
        // A fold that only makes groups: `;`.
        let may_be_empty = *self.peek() == Token::Sign(";");
        let body = self.statements()?;
        if body.is_empty() && !may_be_empty {
            return Err(self.expected("what the fold does"));
        }
        Ok(Fold {
            name,
            state,
            columns,
            body,
        })
    }

    fn statements(&mut self) -> Result<Vec<Statement<'a>>, QueryError> {
        let mut statements = Vec::new();
        loop {
            if self.pass(Token::Sign(";")) {
                continue;
            }
            let at = self.at();
            if self.pass(Token::Word("emit")) {
                self.sign("(")?;
                self.sign(")")?;
                statements.push(Statement::Emit(at));
            } else if self.pass(Token::Word("if")) {
                let condition = self.expr()?;
                let yes = self.block()?;
                let no = match self.pass(Token::Word("else")) {
                    true => self.block()?,
                    false => Vec::new(),
                };
                statements.push(Statement::If(condition, yes, no));
            } else if matches!(self.peek(), Token::Word(word) if !KEYWORDS.contains(word))
                && !self.begins_stream()
            {
                let name = self.name("a variable")?;
                self.sign("=")?;
                statements.push(Statement::Assign(name, self.expr()?));
            } else {
                return Ok(statements);
            }
        }
    }

    /// Whether `name = filter ...` follows.
    fn begins_stream(&self) -> bool {
        let token = self
            .tokens
            .get(self.next.wrapping_add(2))
            .map(|placed| placed.0);
        matches!(
            token,
            Some(Token::Word("filter" | "map" | "groupby" | "zip"))
        ) && self.tokens[self.next.wrapping_add(1)].0 == Token::Sign("=")
    }

    fn block(&mut self) -> Result<Vec<Statement<'a>>, QueryError> {
        self.deeper()?;
        self.sign("{")?;
        let statements = self.statements()?;
        self.sign("}")?;
        self.depth = self.depth.wrapping_sub(1);
        Ok(statements)
    }

    fn deeper(&mut self) -> Result<(), QueryError> {
        self.depth = self.depth.wrapping_add(1);
        match self.depth > DEPTH_MAX {
            true => Err(self.wrong(format!("brackets nested more than {DEPTH_MAX} deep"))),
            false => Ok(()),
        }
    }

    fn stream(&mut self) -> Result<(Name<'a>, Operator<'a>), QueryError> {
        let name = self.name("the name of a stream")?;
        self.sign("=")?;
        let at = self.next;
        let Token::Word(word @ ("filter" | "map" | "groupby" | "zip")) = *self.peek() else {
            return Err(self.expected("filter, map, groupby or zip"));
        };
        self.next = at.wrapping_add(1);
        self.sign("(")?;
        let input = self.name("the name of a stream")?;
        self.sign(",")?;
        let operator = match word {
            "filter" => Operator::Filter(input, self.expr()?),
            "map" => {
                let columns = self.list(|parser| parser.name("a column"))?;
                self.sign(",")?;
                Operator::Map(input, columns, self.list(Self::expr)?)
            }
            "groupby" => {
                let columns = self.list(|parser| parser.name("a column"))?;
                self.sign(",")?;
                Operator::GroupBy(input, columns, self.name("the name of a fold")?)
            }
            _ => Operator::Zip(input, self.name("the name of a stream")?),
        };
        self.sign(")")?;
        if !self.pass(Token::Sign(";")) && *self.peek() != Token::End {
            return Err(self.expected("\";\""));
        }
        Ok((name, operator))
    }

    fn expr(&mut self) -> Result<Expr<'a>, QueryError> {
        self.level(0)
    }

    /// Operators by how little they bind: `or`, `and`, comparisons, sums, products.
    fn level(&mut self, level: usize) -> Result<Expr<'a>, QueryError> {
        use Binary::{Add, And, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Or, Sub};
        const LEVELS: [&[(Token<'static>, Binary)]; 5] = [
            &[(Token::Word("or"), Or), (Token::Sign("||"), Or)],
            &[(Token::Word("and"), And), (Token::Sign("&&"), And)],
            &[
                (Token::Sign("=="), Eq),
                (Token::Sign("!="), Ne),
                (Token::Sign("<="), Le),
                (Token::Sign(">="), Ge),
                (Token::Sign("<"), Lt),
                (Token::Sign(">"), Gt),
            ],
            &[(Token::Sign("+"), Add), (Token::Sign("-"), Sub)],
            &[(Token::Sign("*"), Mul), (Token::Sign("/"), Div)],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.atom();
        };
        let mut left = self.level(level.wrapping_add(1))?;
        while let Some(&(token, operator)) = operators.iter().find(|o| o.0 == *self.peek()) {
            let at = self.at();
            self.pass(token);
            let right = self.level(level.wrapping_add(1))?;
            let depth = left.depth.max(right.depth).wrapping_add(1);
            if depth > OPERATORS_MAX {
                let message = format!("operators nested more than {OPERATORS_MAX} deep");
                return Err(QueryError::new(self.text, at, message));
            }
            let node = Node::Binary(operator, Box::new(left), Box::new(right));
            left = Expr { at, depth, node };
        }
        Ok(left)
    }

    /// Whether a bracket follows the next token.
    fn is_call(&self) -> bool {
        let following = self.tokens.get(self.next.wrapping_add(1));
        following.is_some_and(|(token, _)| *token == Token::Sign("("))
    }

    /// `before(a, b)`.
    fn before(&mut self, at: usize) -> Result<Expr<'a>, QueryError> {
        self.next = self.next.wrapping_add(1);
        self.sign("(")?;
        let left = self.expr()?;
        self.sign(",")?;
        let right = self.expr()?;
        self.sign(")")?;
        self.depth = self.depth.wrapping_sub(1);
        let depth = left.depth.max(right.depth).wrapping_add(1);
        let node = Node::Binary(Binary::Before, Box::new(left), Box::new(right));
        Ok(Expr { at, depth, node })
    }

    fn atom(&mut self) -> Result<Expr<'a>, QueryError> {
        self.deeper()?;
        let at = self.at();
        let node = match *self.peek() {
            Token::Int(value) => Node::Int(value),
            Token::Real(value) => Node::Real(value),
            Token::Address(words) => Node::Address(words),
            Token::Word("true") => Node::Bool(true),
            Token::Word("false") => Node::Bool(false),
            Token::Word("TCP") => Node::Int(6),
            Token::Word("UDP") => Node::Int(17),
            Token::Word("ICMP") => Node::Int(1),
            Token::Word("INFINITY" | "infinity") => {
                return Err(
                    self.wrong("vectors describe packets that arrived: no packet is lost here")
                );
            }
            Token::Word("before") if self.is_call() => return self.before(at),
            Token::Word(word) if !KEYWORDS.contains(&word) => Node::Name(word),
            Token::Sign(sign @ ("(" | "!" | "-")) => {
                self.next = self.next.wrapping_add(1);
                let inner = match sign {
                    "(" => self.expr()?,
                    _ => self.atom()?,
                };
                self.depth = self.depth.wrapping_sub(1);
                let depth = inner.depth.wrapping_add(1);
                let node = match sign {
                    "(" => {
                        self.sign(")")?;
                        return Ok(inner);
                    }
                    "!" => Node::Not(Box::new(inner)),
                    _ => {
                        let zero = Expr {
                            at,
                            depth: 0,
                            node: Node::Int(0),
                        };
                        Node::Binary(Binary::Sub, Box::new(zero), Box::new(inner))
                    }
                };
                return Ok(Expr { at, depth, node });
            }
            _ => return Err(self.expected("a value")),
        };
        self.next = self.next.wrapping_add(1);
        self.depth = self.depth.wrapping_sub(1);
        Ok(Expr { at, depth: 0, node })
    }
}
