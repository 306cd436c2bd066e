//! What one source file reveals about its crate's structure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// A file of a product crate, without its tests.
pub(crate) struct SourceFile {
    pub(crate) crate_name: String,
    /// Relative to the root of the workspace.
    pub(crate) path: String,
    /// The module it is: empty for the root.
    pub(crate) module: Vec<String>,
    /// `unwrap_or(0)`, `unwrap_or(MAX)`, `unwrap_or_default()`, `map_or(0, |x| x)`, and numbers that a failed conversion
    /// or a difference of times becomes.
    pub(crate) fallbacks: usize,
    pub(crate) has_unsafe: bool,
    pub(crate) sleeps: bool,
    /// Our other crates that it names, as in `strata_wire`.
    pub(crate) crates: BTreeSet<String>,
    /// Paths into the same crate, from its root.
    paths: BTreeSet<Vec<String>>,
}

impl SourceFile {
    /// The modules with files of their own that this one names.
    pub(crate) fn uses<'a>(&self, modules: &BTreeSet<&'a [String]>) -> BTreeSet<&'a [String]> {
        let module_of = |path: &Vec<String>| {
            let lengths = (0..=path.len()).rev();
            lengths
                .into_iter()
                .find_map(|n| modules.get(&path[..n]).copied())
        };
        self.paths.iter().filter_map(module_of).collect()
    }
}

/// All files of the crate of this name and folder, reached from its root through `mod`.
pub(crate) fn read_crate(root: &Path, name: &str, folder: &Path) -> Vec<SourceFile> {
    let src = folder.join("src");
    let mut files = Vec::new();
    for start in ["lib.rs", "main.rs"] {
        let file = src.join(start);
        if file.exists() {
            read_module(root, name, &file, &src, Vec::new(), &mut files);
        }
    }
    files
}

fn read_module(
    root: &Path,
    crate_name: &str,
    file: &Path,
    children: &Path,
    module: Vec<String>,
    files: &mut Vec<SourceFile>,
) {
    let text = fs::read_to_string(file).expect("a source file is readable");
    let tree = syn::parse_file(&text).expect("a source file is Rust");
    let mut look = Look {
        module: module.clone(),
        ..Look::default()
    };
    look.visit_file(&tree);
    for child in look.children {
        let flat = children.join(format!("{child}.rs"));
        let inner = children.join(&child);
        let at: PathBuf = if flat.exists() {
            flat
        } else {
            inner.join("mod.rs")
        };
        let mut module = module.clone();
        module.push(child);
        read_module(root, crate_name, &at, &inner, module, files);
    }
    let path = file
        .strip_prefix(root)
        .expect("a source file is in the workspace");
    files.push(SourceFile {
        crate_name: crate_name.to_owned(),
        path: path.to_string_lossy().into_owned(),
        module,
        fallbacks: look.fallbacks,
        has_unsafe: look.has_unsafe,
        sleeps: look.sleeps,
        crates: look.crates,
        paths: look.paths,
    });
}

/// What a walk through the syntax finds.
#[derive(Default)]
struct Look {
    module: Vec<String>,
    children: Vec<String>,
    fallbacks: usize,
    has_unsafe: bool,
    sleeps: bool,
    crates: BTreeSet<String>,
    paths: BTreeSet<Vec<String>>,
}

impl Look {
    /// Records a path that starts with `crate`, `super` or `self`, and the crate of others.
    fn record(&mut self, segments: &[String]) {
        let ours = segments
            .first()
            .and_then(|name| name.strip_prefix("strata_"));
        self.crates.extend(ours.map(|name| name.replace('_', "-")));
        let mut at = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super" | "self") => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    at.pop();
                }
                name => at.push(name.to_owned()),
            }
        }
        self.paths.insert(at);
    }

    fn walk_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.walk_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(name) => self.record_with(before, &name.ident),
            syn::UseTree::Rename(rename) => self.record_with(before, &rename.ident),
            syn::UseTree::Glob(_) => self.record(&before.clone()),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.walk_use(tree, before);
                }
            }
        }
    }

    fn record_with(&mut self, before: &[String], last: &syn::Ident) {
        let mut path = before.to_vec();
        path.push(last.to_string());
        self.record(&path);
    }
}

/// `#[cfg(test)]`, or `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let of_tests = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let tokens = list.tokens.to_string();
            tokens == "test" || tokens.starts_with("all (test") || tokens.starts_with("all(test")
        }
        _ => false,
    };
    attributes.iter().any(of_tests)
}

/// The expressions of a macro's arguments, or of the groups of tokens within, as far as they are some.
fn expressions_of(tokens: TokenStream) -> Vec<syn::Expr> {
    let parsed = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated.parse2(tokens.clone());
    if let Ok(list) = parsed {
        return list.into_iter().collect();
    }
    let groups = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(expressions_of(group.stream())),
        _ => None,
    });
    groups.flatten().collect()
}

/// `|x| x`, `u64::from`, `Into::into`, `identity`.
fn is_identity(function: &syn::Expr) -> bool {
    match function {
        syn::Expr::Closure(closure) => match (closure.inputs.first(), &*closure.body) {
            (Some(syn::Pat::Ident(input)), syn::Expr::Path(body)) => {
                body.path.is_ident(&input.ident)
            }
            _ => false,
        },
        syn::Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
            ["from", "into", "identity", "exact"]
                .iter()
                .any(|name| last.ident == name)
        }),
        _ => false,
    }
}

/// A conversion that may fail, or a difference of times that may be negative: `u8::try_from(x)`, `x.try_into()`,
/// `now.duration_since(then)`, also with `.ok()`.
fn may_be_impossible(value: &syn::Expr) -> bool {
    match value {
        syn::Expr::Call(call) => match &*call.func {
            syn::Expr::Path(path) => {
                let last = path.path.segments.last();
                last.is_some_and(|last| last.ident == "try_from")
            }
            _ => false,
        },
        syn::Expr::MethodCall(call) if call.method == "ok" => may_be_impossible(&call.receiver),
        syn::Expr::MethodCall(call) => call.method == "try_into" || call.method == "duration_since",
        _ => false,
    }
}

/// A number, or the largest one.
fn is_number(value: &syn::Expr) -> bool {
    let is_literal =
        matches!(value, syn::Expr::Lit(literal) if matches!(literal.lit, syn::Lit::Int(_)));
    is_literal || is_fallback(value)
}

/// `0`, `u64::MAX`.
fn is_fallback(value: &syn::Expr) -> bool {
    match value {
        syn::Expr::Lit(literal) => {
            matches!(&literal.lit, syn::Lit::Int(int) if int.base10_digits() == "0")
        }
        syn::Expr::Path(path) => {
            let last = path.path.segments.last();
            path.path.segments.len() == 2 && last.is_some_and(|last| last.ident == "MAX")
        }
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Look {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) {
            return;
        }
        match &item.content {
            None => self.children.push(item.ident.to_string()),
            // Its paths are relative to an inline module; none of ours uses `super` in one.
            Some(_) => visit::visit_item_mod(self, item),
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.walk_use(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        let segments: Vec<String> = segments.collect();
        self.record(&segments);
        // Also imported by its name.
        self.sleeps |= segments.last().is_some_and(|last| last == "sleep");
        visit::visit_path(self, path);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.has_unsafe |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.has_unsafe = true;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let first = call.args.first();
        let from_nothing = first.is_some_and(is_fallback);
        let impossible_is_number =
            || may_be_impossible(&call.receiver) && first.is_some_and(is_number);
        let method = call.method.to_string();
        let falls_back = match method.as_str() {
            "unwrap_or" => from_nothing || impossible_is_number(),
            "unwrap_or_default" => true,
            "map_or" => {
                impossible_is_number() || from_nothing && call.args.last().is_some_and(is_identity)
            }
            _ => false,
        };
        self.fallbacks += usize::from(falls_back);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        for expression in expressions_of(called.tokens.clone()) {
            // What is found is counted, and nothing of the expression is kept.
            let mut inside = Look {
                module: self.module.clone(),
                ..Look::default()
            };
            inside.visit_expr(&expression);
            self.fallbacks += inside.fallbacks;
            self.has_unsafe |= inside.has_unsafe;
            self.sleeps |= inside.sleeps;
            self.paths.append(&mut inside.paths);
        }
        visit::visit_macro(self, called);
    }
}
