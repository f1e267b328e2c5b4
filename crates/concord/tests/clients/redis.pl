# Perl's Redis client, unmodified: redis.pl PORT
use strict;
use warnings;
use Redis;

my $r = Redis->new(server => "127.0.0.1:$ARGV[0]");
$r->set(a => 'value');
die "get" unless $r->get('a') eq 'value';
$r->incr('n') for 1 .. 10;
die "incr" unless $r->get('n') == 10;
my @replies;
$r->rpush('l', $_, sub { push @replies, $_[0] }) for 1 .. 100;
$r->wait_all_responses;
die "pipeline" unless "@replies" eq join ' ', 1 .. 100;
die "list" unless $r->llen('l') == 100;
$r->hset('h', 'f', 'v');
my %h = $r->hgetall('h');
die "hash" unless $h{f} eq 'v';
$r->quit;
print "ok\n";
