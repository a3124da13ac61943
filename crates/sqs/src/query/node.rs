//! A place in the tree that the names of parameters make: what stands there, and what stands below it.
//!
//! ```text
//! Tag.1.Key=a  Tag.1.Value=b  Tag.7.Key=c        the node `Tag.1` has the children `Key` and `Value`
//! ```
//!
//! The parameters are sorted, so a node is a range of them and a child is found by bisection. Nothing is copied.

use super::complaint::Complaint;
use super::params::{Param, Params, is_index, part_order};

/// An index is a place in an order, not an amount: SQS reads ten entries and fifty tags.
const INDEX_DIGITS_MAX: usize = 9;

#[derive(Clone, Copy)]
pub(super) struct Node<'p> {
    /// As the client wrote it, from the beginning; empty for the root.
    pub(super) name: &'p str,
    /// Parameters of exactly this name, in the order in which they came.
    own: &'p [Param<'p>],
    /// Those whose names go on, sorted.
    below: &'p [Param<'p>],
    /// Where in their names the next part begins.
    at: usize,
}

impl<'p> Node<'p> {
    pub(super) fn root(params: &'p Params<'_>) -> Self {
        Self { name: "", own: &[], below: params.sorted(), at: 0 }
    }

    /// The text that stands here. The first one, where a client has sent several.
    pub(super) fn text(&self) -> Option<&'p str> {
        self.own.first().map(|param| param.value.as_ref())
    }

    pub(super) fn child(&self, part: &str) -> Option<Self> {
        let start = self.below.partition_point(|param| part_order(self.part_of(param), part).is_lt());
        let (child, _) = self.first_child(&self.below[start..])?;
        (self.part_of(self.below.get(start)?) == part).then_some(child)
    }

    /// What this node holds as a list or as a map.
    pub(super) fn elements(self) -> Elements<'p> {
        let end = self.below.partition_point(|param| is_index(self.part_of(param)));
        let (indexed, bare) = self.below.split_at(end);
        let bare = (!bare.is_empty()).then_some(Self { own: &[], below: bare, ..self });
        Elements { node: self, own: self.own, bare, indexed }
    }

    /// The part of the name that follows this node's.
    fn part_of<'q>(&self, param: &'q Param<'_>) -> &'q str {
        let rest = &param.name[self.at..];
        rest.split_once('.').map_or(rest, |(part, _)| part)
    }

    /// The child with which `below`, an end of this node's range, begins, and what comes after it.
    fn first_child(&self, below: &'p [Param<'p>]) -> Option<(Self, &'p [Param<'p>])> {
        let first = below.first()?;
        let part = self.part_of(first);
        let end = self.at + part.len();
        let (all, rest) = below.split_at(below.partition_point(|param| self.part_of(param) == part));
        // Of names with one beginning the shortest come first.
        let (own, below) = all.split_at(all.partition_point(|param| param.name.len() == end));
        Some((Self { name: &first.name[..end], own, below, at: end + 1 }, rest))
    }
}

/// The elements of a list, or the entries of a map, in order.
///
/// `Name.N` and what is below it is one element for each N. Some clients leave the index out where they have a single
/// element, or several texts: each `Name=text` is an element, and all of `Name.Part=…` together are one. An empty text
/// without an index stands for a list without elements.
pub(super) struct Elements<'p> {
    node: Node<'p>,
    own: &'p [Param<'p>],
    bare: Option<Node<'p>>,
    indexed: &'p [Param<'p>],
}

impl<'p> Elements<'p> {
    pub(super) fn next(&mut self) -> Result<Option<Node<'p>>, Complaint> {
        while let Some((first, rest)) = self.own.split_first() {
            let own = &self.own[..1];
            self.own = rest;
            if !first.value.is_empty() {
                return Ok(Some(Node { own, below: &[], ..self.node }));
            }
        }
        if let Some(bare) = self.bare.take() {
            return Ok(Some(bare));
        }
        let Some((element, rest)) = self.node.first_child(self.indexed) else { return Ok(None) };
        self.indexed = rest;
        let index = &element.name[self.node.at..];
        if index.len() > INDEX_DIGITS_MAX || index.starts_with('0') {
            return Err(Complaint::wrong("has an index that is not a number from 1 to 999999999").of(element.name));
        }
        Ok(Some(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(body: &str, list: &str) -> Vec<(String, Option<String>)> {
        let params = Params::read(None, body.as_bytes()).unwrap();
        let mut elements = Node::root(&params).child(list).unwrap().elements();
        let mut found = Vec::new();
        while let Some(node) = elements.next().unwrap() {
            found.push((node.name.to_owned(), node.text().map(str::to_owned)));
        }
        found
    }

    #[test]
    fn a_child_is_found_whatever_stands_around_it() {
        let body = "Ab=0&A=1&A.B=2&A.B=3&A.B.C=4&A.Bc=5&A-B=6&A.1=7&A.10.B=8&A.1.B=9&Z=10&.x=11";
        let params = Params::read(None, body.as_bytes()).unwrap();
        let find = |path: &[&str]| {
            let found = path.iter().try_fold(Node::root(&params), |node, part| node.child(part));
            found.map(|node| (node.name.to_owned(), node.text().map(str::to_owned)))
        };
        for (path, name, text) in [
            (&["A"][..], "A", Some("1")),
            (&["A", "B"], "A.B", Some("2")),
            (&["A", "B", "C"], "A.B.C", Some("4")),
            (&["A", "Bc"], "A.Bc", Some("5")),
            (&["A-B"], "A-B", Some("6")),
            (&["Ab"], "Ab", Some("0")),
            (&["A", "1"], "A.1", Some("7")),
            (&["A", "10"], "A.10", None),
            (&["A", "10", "B"], "A.10.B", Some("8")),
            (&["Z"], "Z", Some("10")),
            (&["", "x"], ".x", Some("11")),
        ] {
            assert_eq!(find(path), Some((name.to_owned(), text.map(str::to_owned))), "{path:?}");
        }
        for path in [&["B"][..], &["A", "C"], &["A", "B", "C", "D"], &["A", "2"], &["Z", "1"], &["A", ""]] {
            assert_eq!(find(path), None, "{path:?}");
        }
    }

    #[test]
    fn elements_come_in_the_order_of_their_indexes_with_gaps_and_without_indexes() {
        let text = |name: &str, text: &str| (name.to_owned(), Some(text.to_owned()));
        assert_eq!(names("L.10=c&L.2=b&L.1=a", "L"), [text("L.1", "a"), text("L.2", "b"), text("L.10", "c")]);
        assert_eq!(names("L=b&L=a&L.1=c", "L"), [text("L", "b"), text("L", "a"), text("L.1", "c")]);
        assert_eq!(names("L=", "L"), []);
        assert_eq!(names("L.1=", "L"), [text("L.1", "")]);
        assert_eq!(names("L.1=a&L.1=b", "L"), [text("L.1", "a")]);
        assert_eq!(names("L.Id=a&L.Body=b&L.3.Id=c", "L"), [("L".to_owned(), None), ("L.3".to_owned(), None)]);
    }

    #[test]
    fn an_index_is_a_number_with_a_bound() {
        for (body, good) in [
            ("L.1=a", true),
            ("L.999999999=a", true),
            ("L.0=a", false),
            ("L.01=a", false),
            ("L.1000000000=a", false),
            ("L.99999999999999999999999=a", false),
        ] {
            let params = Params::read(None, body.as_bytes()).unwrap();
            let first = Node::root(&params).child("L").unwrap().elements().next();
            assert_eq!(first.is_ok(), good, "{body}");
            if let Err(complaint) = first {
                let name = body.split('=').next().unwrap();
                assert!(complaint.into_error().message().starts_with(&format!("{name} has an index")));
            }
        }
    }
}
