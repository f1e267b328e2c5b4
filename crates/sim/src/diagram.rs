//! Space-time diagrams of recordings: a lane for each node, time downwards, an arrow for each
//! packet, marks for faults and operations, text on hovering. A diagram is a single file.
//!
//! Idle periods are shortened, so that a second of silence does not take a mile; the axis shows the
//! times.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use concord_core::{MS, US};

use crate::describe::describe;
use crate::record::{Fate, Recording};
use crate::topic::Topic;

/// The maximum number of packets in a diagram; browsers cannot handle many more.
const FLIGHTS_MAX: usize = 3_000;
const LANE_PX: u64 = 190;
const LEFT_PX: u64 = 110;
const TOP_PX: u64 = 40;
/// The distance between two moments: minimum and maximum in pixels, and the number of ns per pixel.
const STEP_PX: (u64, u64) = (3, 28);
const NS_PER_PX: u64 = 4 * US;

/// The part of a recording to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The beginning, in ns of virtual time.
    pub from_ns: u64,
    /// The end, in ns of virtual time.
    pub to_ns: u64,
}

impl Window {
    /// The last packets of a recording, as many as fit into a diagram: a violation shows at the
    /// end.
    #[must_use]
    pub fn last(recording: &Recording) -> Window {
        let mut sent: Vec<u64> = recording.flights.iter().map(|f| f.sent_ns).collect();
        sent.sort_unstable();
        let from = sent.len().saturating_sub(FLIGHTS_MAX);
        Window { from_ns: sent.get(from).copied().unwrap_or(0), to_ns: u64::MAX }
    }
}

/// An item to draw, at one moment or between two.
struct Scene<'a> {
    recording: &'a Recording,
    window: Window,
    /// The vertical position of each moment, in pixels.
    y_px: BTreeMap<u64, u64>,
    /// The number of packets left out because there are too many.
    left_out: usize,
}

impl<'a> Scene<'a> {
    fn new(recording: &'a Recording, window: Window) -> Scene<'a> {
        let mut scene = Scene { recording, window, y_px: BTreeMap::new(), left_out: 0 };
        let mut moments = Vec::new();
        for flight in scene.flights() {
            moments.push(flight.sent_ns);
            if let Fate::Arrives(at_ns) = flight.fate {
                moments.push(at_ns);
            }
        }
        moments.extend(scene.marks().map(|m| m.at_ns));
        moments.sort_unstable();
        moments.dedup();
        let (mut y_px, mut before) = (TOP_PX + 20, moments.first().copied().unwrap_or(0));
        for at_ns in moments {
            if at_ns != before {
                y_px += ((at_ns - before) / NS_PER_PX).clamp(STEP_PX.0, STEP_PX.1);
            }
            scene.y_px.insert(at_ns, y_px);
            before = at_ns;
        }
        let within = recording.flights.iter().filter(|f| scene.is_within(f.sent_ns)).count();
        scene.left_out = within.saturating_sub(FLIGHTS_MAX);
        scene
    }

    fn is_within(&self, at_ns: u64) -> bool {
        (self.window.from_ns..=self.window.to_ns).contains(&at_ns)
    }

    fn flights(&self) -> impl Iterator<Item = &'a crate::record::Flight> {
        let window = self.window;
        let is_within = move |ns: u64| (window.from_ns..=window.to_ns).contains(&ns);
        self.recording.flights.iter().filter(move |f| is_within(f.sent_ns)).take(FLIGHTS_MAX)
    }

    fn marks(&self) -> impl Iterator<Item = &'a crate::record::Mark> {
        let last_ns = self.flights().map(|f| f.sent_ns).max().unwrap_or(u64::MAX);
        let to_ns = if self.left_out > 0 { last_ns } else { self.window.to_ns };
        let from_ns = self.window.from_ns;
        self.recording.marks.iter().filter(move |m| (from_ns..=to_ns).contains(&m.at_ns))
    }

    fn y(&self, at_ns: u64) -> u64 {
        self.y_px.get(&at_ns).copied().unwrap_or(TOP_PX)
    }

    fn height_px(&self) -> u64 {
        self.y_px.values().next_back().copied().unwrap_or(TOP_PX) + 60
    }

    fn width_px(&self) -> u64 {
        lane_px(self.recording.nodes.len()) + 160
    }
}

fn lane_px(node: usize) -> u64 {
    LEFT_PX + LANE_PX / 2 + node as u64 * LANE_PX
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn ms(at_ns: u64) -> String {
    format!("{}.{:03} ms", at_ns / MS, at_ns % MS / US)
}

/// Draws the diagram as SVG, with `title` above it.
#[must_use]
pub fn svg(recording: &Recording, window: Window, title: &str) -> String {
    let scene = Scene::new(recording, window);
    let (width, height) = (scene.width_px(), scene.height_px());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n<style>{}\
         </style>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        style()
    );
    let _ = writeln!(out, "<text x=\"8\" y=\"16\" font-size=\"13\">{}</text>", escaped(title));
    if scene.left_out > 0 {
        let text = format!("{} later packets are left out", scene.left_out);
        let _ = writeln!(out, "<text x=\"8\" y=\"{}\" fill=\"#c0392b\">{text}</text>", height - 10);
    }
    draw_lanes(&scene, &mut out);
    draw_flights(&scene, &mut out);
    draw_marks(&scene, &mut out);
    out += "</svg>\n";
    out
}

fn style() -> String {
    let mut css = String::from(
        "line.lane{stroke:#bbb} g.packet:hover line{stroke-width:3} line.lost{stroke-dasharray:3 3} \
         text.fault{fill:#c0392b;font-weight:bold} text.done{fill:#555} text.time{fill:#888}",
    );
    for topic in Topic::ALL {
        let _ = write!(
            css,
            " .{0} line{{stroke:{1}}} .{0} path{{fill:{1}}}",
            topic.name(),
            topic.colour()
        );
    }
    css
}

fn draw_lanes(scene: &Scene<'_>, out: &mut String) {
    let bottom = scene.height_px() - 30;
    for (node, name) in scene.recording.nodes.iter().enumerate() {
        let x = lane_px(node);
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"bold\">{name}</text>\
             <line class=\"lane\" x1=\"{x}\" y1=\"{TOP_PX}\" x2=\"{x}\" y2=\"{bottom}\"/>",
            TOP_PX - 6
        );
    }
    let mut free_px = 0;
    for (at_ns, y) in &scene.y_px {
        if *y >= free_px {
            free_px = y + 40;
            let _ =
                writeln!(out, "<text class=\"time\" x=\"4\" y=\"{}\">{}</text>", y + 4, ms(*at_ns));
        }
    }
}

fn draw_flights(scene: &Scene<'_>, out: &mut String) {
    for flight in scene.flights() {
        let (topic, text) = describe(&flight.bytes);
        let nodes = &scene.recording.nodes;
        let (Some(from), Some(to)) = (nodes.get(flight.from), nodes.get(flight.to)) else {
            continue;
        };
        let (x1, y1) = (lane_px(flight.from), scene.y(flight.sent_ns));
        let (x2, y2, how) = match flight.fate {
            Fate::Arrives(at_ns) => {
                (lane_px(flight.to), scene.y(at_ns), format!("arrives {}", ms(at_ns)))
            }
            Fate::Lost => ((x1 + lane_px(flight.to)) / 2, y1 + 8, "lost".into()),
        };
        let lost = if flight.fate == Fate::Lost { " class=\"lost\"" } else { "" };
        let _ = writeln!(
            out,
            "<g class=\"packet {}\"><title>{from} to {to}, sent {}, {how}\n{}</title>\
             <line{lost} x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>{}</g>",
            topic.name(),
            ms(flight.sent_ns),
            escaped(&text),
            arrow_head((x1, y1), (x2, y2), flight.fate == Fate::Lost)
        );
    }
}

/// The head of an arrow, or a cross where the packet was lost.
fn arrow_head((x1, y1): (u64, u64), (x2, y2): (u64, u64), is_lost: bool) -> String {
    if is_lost {
        let (l, r, t, b) = (x2 - 4, x2 + 4, y2 - 4, y2 + 4);
        return format!(
            "<line x1=\"{l}\" y1=\"{t}\" x2=\"{r}\" y2=\"{b}\"/>\
             <line x1=\"{l}\" y1=\"{b}\" x2=\"{r}\" y2=\"{t}\"/>"
        );
    }
    let degrees = {
        let (dx, dy) = (x2 as f64 - x1 as f64, y2 as f64 - y1 as f64);
        dy.atan2(dx).to_degrees().round()
    };
    format!("<path transform=\"translate({x2} {y2}) rotate({degrees})\" d=\"M0 0L-8 3L-8 -3Z\"/>")
}

fn draw_marks(scene: &Scene<'_>, out: &mut String) {
    for mark in scene.marks() {
        let y = scene.y(mark.at_ns);
        let x = mark.node.map_or(LEFT_PX, lane_px);
        let (class, short) = if mark.is_fault {
            ("fault", mark.text.clone())
        } else {
            ("done", mark.text.chars().take(30).collect())
        };
        let _ = writeln!(
            out,
            "<g><title>{} {}</title><circle cx=\"{x}\" cy=\"{y}\" r=\"3\"/>\
             <text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text></g>",
            ms(mark.at_ns),
            escaped(&mark.text),
            x + 6,
            y + 4,
            escaped(&short)
        );
    }
}

/// Draws the diagram as an HTML page, on which kinds of packets can be hidden.
#[must_use]
pub fn html(recording: &Recording, window: Window, title: &str) -> String {
    let mut boxes = String::new();
    for topic in Topic::ALL {
        let _ = write!(
            boxes,
            "<label style=\"color:{}\"><input type=\"checkbox\" checked \
             onchange=\"show('{}', this.checked)\"> {}</label> ",
            topic.colour(),
            topic.name(),
            topic.name()
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <style>body{{margin:0;font-family:sans-serif}} header{{position:sticky;top:0;\
         background:#f4f4f4;padding:6px 10px}}</style></head>\n<body><header>{boxes}\
         <span>dashed: lost; hover an arrow for what it carries</span></header>\n{1}\
         <script>function show(topic, on) {{ for (const g of document.querySelectorAll('g.' + \
         topic)) g.style.display = on ? '' : 'none'; }}</script></body></html>\n",
        escaped(title),
        svg(recording, window, title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, run_recorded};

    #[test]
    fn a_run_can_be_drawn() {
        let plan = Plan { operations: 5, loss_ppm: 100_000, ..Plan::default() };
        let (outcome, recording) = run_recorded(&plan);
        assert_eq!(outcome.violation, None);
        let whole = Window { from_ns: 0, to_ns: u64::MAX };
        let svg = svg(&recording, whole, "a <title>");
        for wanted in ["replica-2", "class=\"lost\"", "Write object", "a &lt;title&gt;", "ack, "] {
            assert!(svg.contains(wanted), "{wanted}");
        }
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
        let page = html(&recording, Window::last(&recording), "t");
        assert!(page.ends_with("</html>\n") && page.contains("show('write'"));
        let none = Window { from_ns: u64::MAX - 1, to_ns: u64::MAX };
        assert!(!super::svg(&recording, none, "t").contains("class=\"packet"));
    }
}
