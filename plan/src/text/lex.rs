//! Lines as tokens, read from left to right.

use super::ParseError;
use graph::{TensorType, unquote_name};
use std::{fmt::Display, str::FromStr};

/// What a line is made of.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A keyword, number or name; names may have been quoted.
    Word(String),
    /// An element type with a shape.
    Type(TensorType),
    /// `( ) [ ] { } , = @ ~` or `->`.
    Mark(&'static str),
}

const MARKS: [&str; 11] = ["->", "(", ")", "[", "]", "{", "}", ",", "=", "@", "~"];

/// A line under the reader's finger.
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    tokens: std::vec::IntoIter<Token>,
}

/// Whether a character stands in names without quotes.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./:-+".contains(c)
}

/// The first quoted text of `s`, which begins with a quote, and what follows.
fn quoted(s: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (i, c) in s.char_indices().skip(1) {
        if c == '"' && !escaped {
            return Some(s.split_at(i + 1));
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// The shape that `s` begins with, brackets included, and what follows. Brackets in quoted names do not count.
fn bracketed(s: &str) -> Option<(&str, &str)> {
    let mut rest = s;
    while let Some(c) = rest.chars().next() {
        rest = match c {
            '"' => quoted(rest)?.1,
            ']' => return Some(s.split_at(s.len() - rest.len() + 1)),
            _ => &rest[c.len_utf8()..],
        };
    }
    None
}

fn tokens(mut rest: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    loop {
        rest = rest.trim_start_matches(' ');
        let Some(first) = rest.chars().next() else { return Ok(out) };
        if let Some(mark) = MARKS.iter().find(|m| rest.starts_with(**m)) {
            out.push(Token::Mark(mark));
            rest = &rest[mark.len()..];
        } else if first == '"' {
            let (text, after) = quoted(rest).ok_or("a quote is not closed")?;
            out.push(Token::Word(unquote_name(text).ok_or_else(|| format!("broken escape in {text}"))?));
            rest = after;
        } else if is_plain(first) {
            let end = rest.find(|c| !is_plain(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            if after.starts_with('[') {
                let (shape, after) = bracketed(after).ok_or("a bracket is not closed")?;
                let text = &rest[..word.len() + shape.len()];
                out.push(Token::Type(text.parse().map_err(|e: graph::TypeTextError| e.to_string())?));
                rest = after;
            } else {
                out.push(Token::Word(word.to_owned()));
                rest = after;
            }
        } else {
            return Err(format!("unexpected {first:?}"));
        }
    }
}

impl Line {
    /// The line `text`; `None` if it is empty or a remark.
    pub(super) fn new(number: usize, text: &str) -> Result<Option<Line>, ParseError> {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        let tokens = tokens(text).map_err(|what| ParseError { line: number, what })?.into_iter();
        Ok(Some(Line { number, tokens }))
    }

    pub(super) fn error<T>(&self, what: impl Display) -> Result<T, ParseError> {
        Err(ParseError { line: self.number, what: what.to_string() })
    }

    /// A keyword or name.
    pub(super) fn word(&mut self, what: &str) -> Result<String, ParseError> {
        match self.tokens.next() {
            Some(Token::Word(w)) => Ok(w),
            _ => self.error(format_args!("{what} expected")),
        }
    }

    /// A number or anything else that is read from a word.
    pub(super) fn read<T: FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let word = self.word(what)?;
        word.parse().or_else(|_| self.error(format_args!("{what} expected instead of {word:?}")))
    }

    /// One of a table's words.
    pub(super) fn one_of<T: Clone>(
        &mut self,
        table: &[(T, &'static str)],
        what: &str,
    ) -> Result<T, ParseError> {
        let word = self.word(what)?;
        match table.iter().find(|(_, w)| *w == word) {
            Some((v, _)) => Ok(v.clone()),
            None => self.error(format_args!("{word:?} is no {what}")),
        }
    }

    /// A type.
    pub(super) fn ty(&mut self) -> Result<TensorType, ParseError> {
        match self.tokens.next() {
            Some(Token::Type(t)) => Ok(t),
            _ => self.error("a type expected"),
        }
    }

    /// Takes the keyword if it comes next.
    pub(super) fn take_word(&mut self, keyword: &str) -> bool {
        let next = matches!(self.tokens.as_slice().first(), Some(Token::Word(w)) if w == keyword);
        if next {
            self.tokens.next();
        }
        next
    }

    /// Takes the mark if it comes next.
    pub(super) fn take(&mut self, mark: &str) -> bool {
        let next = matches!(self.tokens.as_slice().first(), Some(Token::Mark(m)) if *m == mark);
        if next {
            self.tokens.next();
        }
        next
    }

    /// The keyword must come next.
    pub(super) fn keyword(&mut self, keyword: &str) -> Result<(), ParseError> {
        if self.take_word(keyword) { Ok(()) } else { self.error(format_args!("{keyword:?} expected")) }
    }

    /// The mark must come next.
    pub(super) fn mark(&mut self, mark: &str) -> Result<(), ParseError> {
        if self.take(mark) { Ok(()) } else { self.error(format_args!("{mark:?} expected")) }
    }

    /// Things between brackets, separated by commas.
    pub(super) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Line) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        self.mark(open)?;
        let mut out = Vec::new();
        while !self.take(close) {
            if !out.is_empty() {
                self.mark(",")?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    /// Whether all was read.
    pub(super) fn at_end(&self) -> bool {
        self.tokens.as_slice().is_empty()
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), ParseError> {
        if self.at_end() { Ok(()) } else { self.error("something is left over at the end of the line") }
    }
}
