//! Finds an operation by method and path alone, without axum's router.
//!
//! The router clones a service, boxes a future and stores the path's parts in the request, which costs more than finding the route.
//! Requests that are not found here (other methods, streams, documents, mistakes) go through the router.

use http::Method;
use waybill_kernel::Method as Verb;

/// The routes, by the number of parts in their paths.
pub(crate) struct Routes<T>(Vec<Vec<Route<T>>>);

struct Route<T> {
    verb: Verb,
    /// None for a `{name}`, which matches any text.
    parts: Vec<Option<&'static str>>,
    to: T,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Routes<T> {
    pub(crate) fn add(&mut self, verb: Verb, path: &'static str, to: T) {
        let parts: Vec<Option<&'static str>> =
            path.split('/').map(|part| (!part.starts_with('{')).then_some(part)).collect();
        if self.0.len() <= parts.len() {
            self.0.resize_with(parts.len() + 1, Vec::new);
        }
        let same_length = &mut self.0[parts.len()];
        same_length.push(Route { verb, parts, to });
        // A literal part goes before a `{name}`, as in the router.
        same_length.sort_by(|one, other| order(&one.parts).cmp(order(&other.parts)));
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&T> {
        let verb = match *method {
            Method::GET => Verb::Get,
            Method::POST => Verb::Post,
            _ => return None,
        };
        let routes = self.0.get(path.split('/').count())?;
        routes.iter().find(|route| route.verb == verb && route.fits(path)).map(|route| &route.to)
    }
}

fn order<'a>(parts: &'a [Option<&'static str>]) -> impl Iterator<Item = (bool, &'static str)> + 'a {
    parts.iter().map(|part| (part.is_none(), part.unwrap_or_default()))
}

impl<T> Route<T> {
    /// `path` has as many parts as this route.
    fn fits(&self, path: &str) -> bool {
        self.parts.iter().zip(path.split('/')).all(|(part, found)| match part {
            Some(part) => *part == found,
            None => !found.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_found_by_method_and_parts_and_words_go_before_fields() {
        let mut routes = Routes::default();
        for (verb, path) in [
            (Verb::Get, "/v1/tasks/{task_id}"),
            (Verb::Post, "/v1/tasks"),
            (Verb::Get, "/v1/tasks/counts"),
            (Verb::Post, "/v1/tasks/{task_id}/cancel"),
            (Verb::Get, "/v1/tasks"),
        ] {
            routes.add(verb, path, (verb, path));
        }
        for (method, path, found) in [
            (Method::POST, "/v1/tasks", Some("/v1/tasks")),
            (Method::GET, "/v1/tasks", Some("/v1/tasks")),
            (Method::GET, "/v1/tasks/counts", Some("/v1/tasks/counts")),
            (Method::GET, "/v1/tasks/1", Some("/v1/tasks/{task_id}")),
            (Method::POST, "/v1/tasks/1/cancel", Some("/v1/tasks/{task_id}/cancel")),
            (Method::POST, "/v1/tasks//cancel", None),
            (Method::GET, "/v1/tasks/", None),
            (Method::POST, "/v1/tasks/1", None),
            (Method::PUT, "/v1/tasks", None),
            (Method::HEAD, "/v1/tasks", None),
            (Method::GET, "", None),
            (Method::GET, "/v1/tasks/1/2/3/4/5/6", None),
        ] {
            let verb = if method == Method::POST { Verb::Post } else { Verb::Get };
            assert_eq!(routes.find(&method, path), found.map(|found| (verb, found)).as_ref(), "{method} {path}");
        }
    }
}
