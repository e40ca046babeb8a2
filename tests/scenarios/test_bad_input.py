"""Bad input to every command and in every file: exit code 2, one line, no traceback, nothing written."""

import contextlib
import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rscfed_jax.cli import commands
from rscfed_jax.config import HASHES, SETTINGS, Config
from rscfed_jax.config.kinds import SWITCH
from rscfed_jax.storage.run_directory import RunDirectory
from tests.helpers import MINE, SMALL, flags_of, run, save_npz

LONG = "x" * 300
# Each must be refused before JAX starts. The second part is what the line must say; for a wrong value that is the
# setting, the value and what is allowed.
TRAIN = [
    ("--rounds 0", "--rounds 0: must be a whole number of at least 1"),
    ("--rounds -3", "--rounds -3: must be a whole number of at least 1"),
    ("--rounds ten", "--rounds ten: must be a whole number of at least 1"),
    ("--rounds 1e3", "--rounds 1e3: must be a whole number"),
    ("--rounds 0x10", "--rounds 0x10: must be a whole number"),
    ("--rounds ١٢x", "whole number"),
    ("--rounds", "--rounds: expected one argument"),
    ("--seed -1", "--seed -1: must be a whole number of at least 0"),
    ("--seed 1e9", "--seed 1e9: must be a whole number"),
    ("--seed 99999999999", "--seed 99999999999: must be a whole number"),
    ("--warmup-rounds 10000000000", "--warmup-rounds 10000000000: must be a whole number"),
    ("--eval-every 0", "--eval-every 0: must be a whole number of at least 1"),
    ("--checkpoint-every 0", "--checkpoint-every 0: must be a whole number of at least 1"),
    ("--checkpoint-every x", "--checkpoint-every x: must be a whole number"),
    ("--batch-size 0", "--batch-size 0: must be a whole number of at least 1"),
    ("--local-epochs 0", "--local-epochs 0: must be a whole number of at least 1"),
    ("--chunk 0", "--chunk 0: must be a whole number of at least 1, or auto"),
    ("--devices some", "--devices some: must be a whole number of at least 1, or auto"),
    ("--clients 0", "--clients 0: must be a whole number of at least 1"),
    ("--subsets 0", "--subsets 0: must be a whole number of at least 1"),
    ("--subset-size 0", "--subset-size 0: must be a whole number of at least 1"),
    ("--subset-size 11", "--subset-size 11: must be from 1 to --clients 10"),
    ("--labeled-clients 11", "--labeled-clients 11: must be from 1 to --clients 10"),
    ("--labeled-clients 0", "--labeled-clients 0: no client would hold a label"),
    ("--labeled-fraction 0", "--labeled-fraction 0: no client would hold a label"),
    ("--labeled-fraction 1.1", "--labeled-fraction 1.1: must be a number from 0 to 1"),
    ("--labeled-fraction -0.1", "--labeled-fraction -0.1: must be a number from 0 to 1"),
    ("--labeled-fraction 0.1 --labeled-clients 1", "--labeled-fraction 0.1: cannot be combined with --labeled-clients"),
    ("--labels-at home", "--labels-at home: must be one of clients, server"),
    ("--labels-at server --server-labels 0", "--server-labels 0: must be a whole number of at least 1"),
    ("--labels-at server --server-labels 1.5", "--server-labels 1.5: must be a whole number of at least 1"),
    ("--labels-at server --server-labels 1300", "--server-labels 1300: the training set has only"),
    ("--labels-at server --labeled-clients 1", "--labeled-clients 1: cannot be combined with --labels-at server"),
    ("--labels-at server --labeled-fraction 0.1", "--labeled-fraction 0.1: cannot be combined with --labels-at"),
    ("--labels-at server --byzantine 11", "--byzantine 11: must be from 0 to --clients 10"),
    ("--labels-at server --subset-size 11", "--subset-size 11: must be from 1 to --clients 10"),
    ("--server-labels 5", "--server-labels 5: needs --labels-at server"),
    ("--labels-at server --server-labels 1200 --partition-file pair.npz --clients 2", "all samples of client 0"),
    ("--labeled-gamma 0.5", "--labeled-gamma 0.5: needs a --labeled-fraction below 1"),
    ("--labeled-gamma 0.5 --labeled-fraction 1", "--labeled-gamma 0.5: needs a --labeled-fraction below 1"),
    ("--labeled-gamma 0 --labeled-fraction 0.1", "--labeled-gamma 0.0: must be a number above 0, or iid"),
    (
        "--labeled-gamma 1 --labeled-fraction 0.1 --partition-file range.npz",
        "--labeled-gamma 1.0: cannot be combined with --partition",
    ),
    (
        "--labeled-gamma 1 --labeled-fraction 0.1 --classes-per-client 2",
        "--labeled-gamma 1.0: cannot be combined with --classes-per",
    ),
    ("--labels-at server --labeled-gamma 1", "--labeled-gamma 1.0: needs a --labeled-fraction below 1"),
    (
        "--dataset synthetic:train=600 --clients 20 --gamma iid --labeled-gamma 0.01 --labeled-fraction 0.1",
        "--labeled-gamma 0.01: some client got none of the 60 labeled samples in each of 1000 draws",
    ),
    ("--labeled-gamma 1 --labeled-fraction 0.001 --clients 20", "10 labeled samples are not enough for 20 clients"),
    ("--classes-per-client 0", "--classes-per-client 0: must be a whole number of at least 1"),
    ("--classes-per-client two", "--classes-per-client two: must be a whole number of at least 1"),
    ("--classes-per-client 11", "--classes-per-client 11: must be from 1 to the 10 classes"),
    ("--classes-per-client 2 --clients 4", "--clients 4 would leave classes without a client; must be at least 3"),
    ("--classes-per-client 2 --gamma 0.8", "--classes-per-client 2: cannot be combined with --gamma"),
    (
        "--classes-per-client 2 --partition-file range.npz",
        "--classes-per-client 2: cannot be combined with --partition-file",
    ),
    ("--classes-per-client 2 --min-client-size 1300", "--min-client-size 1300: a client with --classes-per-client 2"),
    ("--labeled-share 2", "--labeled-share 2.0: must be a number from 0 to 1, or off"),
    ("--labeled-share none", "--labeled-share none: must be a number from 0 to 1, or off"),
    ("--labeled-multiplier 0", "--labeled-multiplier 0.0: must be a number above 0"),
    ("--train-fraction 0", "--train-fraction 0.0: must be a number above 0"),
    ("--train-fraction 1.5", "--train-fraction 1.5: must be a number above 0 and of at most 1"),
    ("--dataset synthetic:train=400 --validation 0.001", "--validation 0.001: holds out"),
    ("--validation 1", "--validation 1.0: must be a number from 0 to 0.9"),
    ("--gamma 0", "--gamma 0.0: must be a number above 0, or iid"),
    ("--gamma -1", "--gamma -1.0: must be a number above 0, or iid"),
    ("--lr-labeled -0.1", "--lr-labeled -0.1: must be a number of at least 0"),
    ("--lr-labeled nan", "--lr-labeled nan: must be a number of at least 0"),
    ("--lr-labeled inf", "--lr-labeled inf: must be a number of at least 0"),
    ("--lr-unlabeled -1", "--lr-unlabeled -1.0: must be a number of at least 0"),
    ("--momentum 2", "--momentum 2.0: must be a number from 0 to 1"),
    ("--weight-decay -1", "--weight-decay -1.0: must be a number of at least 0"),
    ("--clip-norm 0", "--clip-norm 0.0: must be a number above 0"),
    ("--beta -1", "--beta -1.0: must be a number of at least 0"),
    ("--beta 1e39", "--beta 1e+39: must be a number of at least 0"),
    ("--beta-labeled -1", "--beta-labeled -1.0: must be a number of at least 0"),
    ("--lambda-u -1", "--lambda-u -1.0: must be a number of at least 0"),
    ("--tau 0", "--tau 0.0: must be a number above 0"),
    ("--tau 1e-50", "--tau 1e-50: must be a number above 0"),
    ("--tau=-inf", "--tau -inf: must be a number above 0"),
    ("--ema 1.5", "--ema 1.5: must be a number from 0 to 1"),
    ("--ema -0.1", "--ema -0.1: must be a number from 0 to 1"),
    ("--drop-rate -0.1", "--drop-rate -0.1: must be a number from 0 to 1"),
    ("--drop-rate 1.1", "--drop-rate 1.1: must be a number from 0 to 1"),
    ("--drop-rate often", "--drop-rate often: must be a number from 0 to 1"),
    ("--drop-rate nan", "--drop-rate nan: must be a number from 0 to 1"),
    ("--byzantine -1", "--byzantine -1: must be a whole number of at least 0"),
    ("--byzantine 11", "--byzantine 11: must be from 0 to --clients 10"),
    ("--byzantine 1.5", "--byzantine 1.5: must be a whole number"),
    ("--attack bribe", "--attack bribe: must be one of noise, sign-flip, scale"),
    ("--attack=", "--attack : must be one of noise"),
    ("--attackers all", "--attackers all: must be one of unlabeled-first, labeled-first, largest-first"),
    ("--attack-scale 0", "--attack-scale 0.0: must be a number above 0"),
    (
        "--method fixmatch --image-size 8 --model resnet8",
        "--method fixmatch: has a strong view, which needs --image-size",
    ),
    ("--method semifl --labels-at server --server-labels 0", "--server-labels 0: must be a whole number of at least 1"),
    (
        "--method semifl --labeled-clients 10",
        "--labeled-clients 10: leaves no unlabeled samples, which --method semifl",
    ),
    ("--sampling unlabeled --labeled-fraction 1", "--labeled-fraction 1.0: leaves no unlabeled sample"),
    ("--server-optimizer adam --server-momentum 1", "--server-momentum 1: must be below 1, because Adam divides"),
    ("--method semifl --server-labels 9", "--server-labels 9"),
    ("--method semifl --labeled-fraction 0.1 --labeled-batch-size 8", "--method semifl: trains on labels in a phase"),
    ("--labeled-batch-size 8", "--labeled-batch-size 8: needs --labeled-fraction"),
    ("--method cbafed --local-epochs 2", "--method cbafed: has --cbafed-labeled-epochs"),
    ("--method cbafed --cbafed-cap 1.5", "--cbafed-cap 1.5: must be a number from 0 to 1"),
    ("--method fixmatch --fixmatch-labels mine", "--fixmatch-labels mine: must be one of global, own"),
    ("--method fedrgd --labeled-fraction 0.1", "--method fedrgd: needs clients that hold no labels"),
    ("--method semianagg --labeled-fraction 0.1", "--method semianagg: needs clients with all of their labels"),
    ("--fixmatch-threshold 0.9", "--fixmatch-threshold 0.9: is a setting of the method fixmatch"),
    ("--strong flip", "--strong flip: must be one of randaugment, torchssl, weak"),
    ("--server-optimizer sgd", "--server-optimizer sgd: must be one of none, momentum, adam"),
    ("--prox-mu -1", "--prox-mu -1.0: must be a number of at least 0"),
    ("--sampling some", "--sampling some: must be one of own, subsets, all, labeled, unlabeled"),
    ("--aggregator best", "--aggregator best: must be one of own, mean, dma, median"),
    ("--assumed-attackers -1", "--assumed-attackers -1: must be a whole number of at least 0"),
    ("--aggregator krum --assumed-attackers 2", "--aggregator krum: needs at least 7 models to withstand"),
    ("--preset best", "--preset best: must be one of paper, published"),
    ("--distance cosine", "--distance cosine: must be one of l2, sum"),
    ("--repeat never", "--repeat never: must be one of retrain"),
    ("--teacher-init zero", "--teacher-init zero: must be one of initial"),
    ("--labeled-choice best", "--labeled-choice best: must be one of most-classes"),
    ("--dtype float8", "--dtype float8: must be one of float32, bfloat16"),
    ("--conv winograd", "--conv winograd: must be one of auto, matmul, plain"),
    ("--model vgg", "--model vgg: must be one of resnet18, resnet18-linear, resnet8, simple-cnn, "),
    ("--model resnet18 --stem wide", "--stem wide: must be one of cifar, imagenet"),
    ("--model resnet18 --image-size 8", "--image-size 8: resnet18 takes"),
    ("--image-size 30", "--image-size 30: simple-cnn takes multiples of 4"),
    ("--image-size 32 --resize 30", "--resize 30: must be at least --image-size 32"),
    ("--flip=yes", "--flip"),
    ("--speed fast", "unrecognized arguments: --speed fast"),
    ("--speed a\nb", "unrecognized arguments: --speed a b"),
    ("extra", "unrecognized arguments: extra"),
    # Data.
    ("--dataset mnist", "--dataset mnist: must be cifar10, cifar100, fashion"),
    ("--dataset svhn2", "--dataset svhn2: must be"),
    ("--dataset=", "--dataset : must be"),
    ("--dataset synthetic:train=none", "--dataset synthetic:train=none: "),
    ("--dataset synthetic:classes=1", "classes must be from 2"),
    ("--dataset synthetic:channels=2", "channels must be 1 or 3"),
    ("--dataset synthetic:test=99999999", "are allowed"),
    ("--dataset npz:", "--dataset npz:"),
    ("--dataset npz:missing.npz", "--dataset npz:missing.npz: missing.npz: no such file"),
    ("--dataset npz:folder", "not a readable npz"),
    ("--dataset npz:text.npz", "not a readable npz"),
    ("--dataset npz:cut.npz", "not a readable npz"),
    ("--dataset npz:flipped.npz", "not a readable npz"),
    ("--dataset npz:nothing.npz", "not a readable npz"),
    ("--dataset npz:array.npz", "not a readable npz"),
    ("--dataset npz:noarray.npz", "holds 'readme.txt', which is not an array"),
    ("--dataset npz:pickle.npz", "never read"),
    ("--dataset npz:keys.npz", "lacks train_labels"),
    ("--dataset npz:dtype.npz", "must be uint8, not float32"),
    ("--dataset npz:shape.npz", "must have shape N,H,W"),
    ("--dataset npz:labels.npz", "must be from 0 to classes - 1"),
    ("--dataset npz:empty.npz", "holds no images"),
    ("--dataset npz:lengths.npz", "one number per image"),
    ("--dataset npz:floats.npz", "whole numbers"),
    ("--dataset npz:one.npz", "at least two classes"),
    ("--dataset npz:more.npz", "test_labels holds"),
    ("--dataset npz:good.npz --data-dir folder", "no such file"),
    ("--dataset npz:good.npz --data-dir good.npz", "not a readable npz"),
    ("--dataset npz:owners.npz", "train_clients must be one client per image (20), not of shape (19,)"),
    ("--dataset npz:clients.npz --clients 3", "--clients 3: npz:clients.npz says which of 4 clients holds each sample"),
    ("--dataset npz:clients.npz --gamma 0.8", "--gamma 0.8: npz:clients.npz says which client holds each sample"),
    ("--partition natural", "--partition natural: fashion does not name its clients; must be drawn"),
    ("--partition mine", "--partition mine: must be one of drawn, natural"),
    ("--download --download-from ftp", "--download-from ftp: must be one of official, tfds"),
    ("--dataset isic2018 --download", "you must accept their licence yourself, so --download does not fetch them"),
    ("--partition-file missing.npz", "--partition-file missing.npz: no such file"),
    ("--partition-file folder", "--partition-file folder"),
    ("--partition-file cut.npz", "not a readable npz"),
    ("--partition-file good.npz", "10 arrays client_0"),
    ("--partition-file float.npz --clients 1", "list of sample indices"),
    ("--partition-file range.npz --clients 2", "index 12000"),
    ("--partition-file twice.npz --clients 2", "index 5 is used 2 times"),
    ("--partition-file range.npz --clients 3", "3 arrays client_0 to client_2"),
    ("--min-client-size 1300", "--min-client-size 1300: "),
    ("--gamma iid --min-client-size 1300", "--min-client-size 1300: "),
    ("--dataset synthetic:train=100 --min-client-size 10", "in 1000 draws"),
    # Runs and models.
    ("--init-from missing", "--init-from missing: is not a run directory"),
    ("--init-from folder", "--init-from folder: is not a run directory"),
    ("--init-from good.npz", "is not a run directory"),
    ("--init-from list", "not readable JSON"),
    ("--init-from missing.safetensors", "--init-from missing.safetensors: cannot be read: No such file"),
    ("--init-from text.safetensors", "--init-from text.safetensors: is not a readable safetensors file"),
    (f"--init-from {LONG}", "is not a run directory"),
    ("--out", "--out: expected one argument"),
    ("--out=", "--out '': must name a directory; without --out it is runs/fashion-rscfed-seed0"),
    ("--out finished", "--out finished: already holds a run"),
    ("--out finished --resume --seed 5", "--resume finished: the run there has different settings: seed was 0"),
    ("--out finished --resume --method sso --beta 1", "method was rscfed and is sso, beta was 10000.0 and is 1.0"),
    ("--out finished --resume --drop-rate 0.5", "drop_rate was 0.0 and is 0.5"),
    ("--out finished --resume --rounds 99", "--rounds 99: must be at least 100, the rounds of the run that is resumed"),
    ("--out old --resume", "--resume old: was written by version 0.1"),
    ("--out list --resume", "--out list: config.json there is not readable JSON"),
    ("--out binary --resume", "not readable JSON"),
    ("--out parts", "no config.json"),
    ("--out parts --resume", "no config.json"),
    ("--out good.npz", "--out good.npz: cannot be written"),
    ("--out good.npz/run --resume", "--out good.npz/run: cannot be written"),
    ("--out /proc/nothing/run", "cannot be written"),
    ("--out dangling/run", "cannot be written"),
    (f"--out {LONG}", "cannot be written"),
    ("--resume=now", "--resume"),
    # Methods and networks of a user's own.
    ("--method fedprox", "--method fedprox: must be one of balanced_labels, cbafed, fed_consist"),
    ("--method nowhere.py", "--method nowhere.py: cannot be read: No such file or directory"),
    ("--method ./folder", "--method folder: cannot be read: Is a directory"),
    ("--method m/syntax.py", "--method m/syntax.py: is not a valid Python file: line 1: "),
    ("--method m/binary.py", "--method m/binary.py: is not a valid Python file: "),
    ("--method m/nothing.py", "--method m/nothing.py: holds no method: it must define a function method"),
    ("--method m/no_default.py", "--method m/no_default.py: n has no default"),
    ("--method m/pair.py", "--method m/pair.py: n must be (default, range, help), as in"),
    ("--method m/outside.py", "--method m/outside.py: n has the default 2, which must be a number from 0 to 1"),
    ("--method m/range.py", "--method m/range.py: n has the range 'a lot', which must be like 0..1"),
    ("--method m/number.py", "--method m/number.py: the name 'N' must be lower-case letters"),
    ("--method m/listed.py", "--method m/listed.py: NUMBERS must be a dictionary"),
    ("--method m/samples.py", "--method m/samples.py: SAMPLES 'some' must be one of subsets, all, labeled"),
    ("--method m/defaults.py", "--method m/defaults.py: its DEFAULTS name bet, which is not a setting"),
    ("--method m/refuses.py --flip", "--method refuses: it must not flip"),
    ("--method m/rscfed.py", "--method m/rscfed.py: rscfed is the name of a built-in method; rename the file"),
    ("--method m/Mine.py", "--method m/Mine.py: its name 'Mine' must be lower-case letters"),
    ("--method m/labeled.py", "--method m/labeled.py: a number would be --labeled-share, which is already a flag"),
    ("--method m/num.py", "--method m/num.py: a number would be --num-processes, which is already a flag"),
    ("--method mine.py --mine-threshold 2", "--mine-threshold 2.0: must be a number from 0 to 1"),
    ("--method mine.py --mine-threshold x", "--mine-threshold x: must be a number from 0 to 1"),
    ("--mine-threshold 0.8", "unrecognized arguments: --mine-threshold 0.8"),
    ("--method fedirm --balanced-softmax", "--method fedirm: smooths its labels, so that --balanced-softmax"),
    ("--fedirm-factor 3", "--fedirm-factor 3.0: is a setting of the method fedirm, but the method is rscfed"),
    ("--method mine.py --fedirm-factor 3", "--fedirm-factor 3.0: is a setting of the method fedirm, but the method is"),
    ("--out foreign --resume --method m/mine.py", "the file of method mine has changed since the run began"),
    ("--out foreign --resume", "the run there has the method mine of a file: give that file again (--method PATH)"),
    ("--out foreign --resume --method mine.py --mine-threshold 0.2", "mine_threshold was 0.9 and is 0.2"),
    ("--model nowhere.py", "--model nowhere.py: cannot be read: No such file or directory"),
    ("--model mine.py", "--model mine.py: holds no model: it must define a function network"),
    ("--model m/resnet18.py", "--model m/resnet18.py: resnet18 is the name of a built-in model; rename the file"),
    # Config files.
    ("--config", "--config: expected one argument"),
    ("--config missing.toml", "--config missing.toml: cannot be read: No such file or directory"),
    ("--config folder", "--config folder: is a directory; give a config.json or a TOML file"),
    ("--config finished", "--config finished: is a directory; give a config.json or a TOML file"),
    ("--config good.npz", "--config good.npz: must be a file that ends in .json or .toml"),
    (f"--config {LONG}.toml", "cannot be read: File name too long"),
    ("--config /dev/zero", "--config /dev/zero: must be a file that ends in .json or .toml"),
    ("--config list/config.json", "is not valid JSON: it must be an object of settings"),
    ("--config binary/config.json", "--config binary/config.json: is not UTF-8 text"),
    ("--config c/deep.json", "--config c/deep.json: is nested too deeply for Python to read"),
    ("--config c/large.json", "--config c/large.json: has 200,000 bytes, but at most 100,000 are allowed"),
    ("--config c/twice.json", "--config c/twice.json: is not valid JSON: seed appears twice"),
    ("--config c/twice.toml", "--config c/twice.toml: is not valid TOML: Cannot overwrite a value"),
    ("--config c/key.toml", "--config c/key.toml: bata is not a setting; did you mean beta?"),
    ("--config c/key.json", "--config c/key.json: bata is not a setting; did you mean beta?"),
    ("--config c/out.toml", "--config c/out.toml: out belongs to one run, not to its settings: give --out"),
    ("--config wrong/config.json", "--config wrong/config.json: rounds = -5: must be a whole number of at least 1"),
    ("--config typed/config.json", '--config typed/config.json: lr_labeled = "fast": must be a number'),
    ("--config c/grid.toml", "--config c/grid.toml: [grid] works only with the command grid"),
    (
        "--config c/subset.toml",
        "--subset-size 11: must be from 1 to --clients 10 (--subset-size 11: from c/subset.toml)",
    ),
    ("--config c/subset.toml --clients 8", "must be from 1 to --clients 8 (--subset-size 11: from c/subset.toml)"),
    (
        "--config finished/config.json --dataset isic2018 --resize 30",
        "--resize 30: must be at least --image-size 224\n",  # not the file's 32, which no longer counts
    ),
    ("--config c/data.toml", "missing.npz: no such file (--dataset npz:missing.npz: from c/data.toml)"),
    ("--config c/labels.toml --labeled-fraction 0.1", "give only one (--labeled-clients 2: from c/labels.toml)"),
    ("--config c/own.toml", "--fedirm-factor 3: is a setting of the method fedirm, but the method is rscfed"),
    ("--config c/name.toml", "--method fedprox: must be one of"),
    ("--config c/method.toml", 'method = "./mine.py": a Python file is run only if the command names it'),
    ("--config c/model.toml", 'model = "./net.py": a Python file is run only if the command names it'),
    ("--config named/config.json", 'model = "mine.py": a Python file is run only if the command names it'),
    ("--config foreign/config.json", 'method = "mine": a Python file is run only if the command names it; give'),
    ("--config foreign/config.json --seed 1", "give it as --method PATH"),
    ("--config foreign/config.json --mine-threshold 0.5", "unrecognized arguments: --mine-threshold"),
    ("--config finished/config.json --out finished", "--out finished: already holds a run; add --resume"),
    ("--config finished/config.json --out finished --resume --seed 5", "different settings: seed was 0 and is 5"),
    ("--config finished/config.json --rounds 0", "--rounds 0: must be a whole number of at least 1"),
]
OTHERS = [
    ("fly", "invalid choice: 'fly'"),
    ("resume", "invalid choice"),
    ("--quiet", "required: COMMAND"),
    ("evaluate", "required: PATH"),
    ("evaluate missing", "PATH missing: is not a run directory"),
    ("evaluate folder", "PATH folder: is not a run directory"),
    ("evaluate good.npz", "is not a run directory"),
    (f"evaluate {LONG}", "is not a run directory"),
    ("evaluate missing/checkpoints/3", "PATH missing/checkpoints/3: is not a run directory"),
    ("evaluate missing.safetensors", "PATH missing.safetensors: cannot be read: No such file"),
    ("evaluate text.safetensors", "PATH text.safetensors: is not a readable safetensors file"),
    ("evaluate text.pth", "PATH text.pth: "),
    ("evaluate list", "not readable JSON"),
    ("evaluate binary", "not readable JSON"),
    ("evaluate wrong", "--rounds -5"),
    ("evaluate typed", "--lr-labeled fast"),
    ("evaluate sides", "--resize ../x: must be a whole number of at least 4"),
    ("evaluate zero", "--resize 5/0: must be a whole number of at least 4"),
    ("evaluate named", "PATH named: config.json there names a file as its model, which is never executed"),
    ("evaluate finished --dataset none", "--dataset none"),
    ("evaluate finished --dataset npz:cut.npz", "not a readable npz"),
    ("evaluate finished --rounds 5", "unrecognized arguments"),
    ("evaluate finished finished", "unrecognized arguments"),
    ("data", "required: DATASET"),
    ("data none", "--dataset none"),
    ("data fashion --export parts.pth", "--export parts.pth: must end in .npz"),
    ("data fashion:", "--dataset fashion:"),
    ("data npz:cut.npz", "not a readable npz"),
    ("data npz:pickle.npz", "never read"),
    ("data fashion --clients 0", "--clients 0"),
    ("data fashion --labeled-clients 20", "--labeled-clients 20"),
    ("data fashion --gamma none", "or iid"),
    ("data fashion --seed -1", "--seed -1"),
    ("data fashion --method sso", "unrecognized arguments"),
    ("data fashion --figure folder", "--figure folder: must end in one of .png"),
    ("data synthetic --figure missing/p.png", "--figure missing/p.png: cannot be written"),
    ("data synthetic --figure good.npz/p.png", "--figure good.npz/p.png: cannot be written"),
    ("data fashion --export missing/p.npz", "--export missing/p.npz: cannot be written"),
    ("data fashion --export good.npz/p.npz", "--export good.npz/p.npz: cannot be written"),
    ("data synthetic:train=5,classes=2 --min-client-size 9", "--min-client-size 9"),
    ("data svhn", "put train_32x32.mat and test_32x32.mat there, from http://ufldl.stanford.edu/housenumbers, or use"),
    ("data svhn --data-dir mat", "train_32x32.mat: is not a readable MATLAB file"),
    ("data cifar10 --data-dir pickle", "asks for builtins.eval, which is never loaded"),
    ("data cifar100 --data-dir tar", "is damaged or incomplete"),
    ("data cifar100 --data-dir mat", "put cifar-100-python.tar.gz or cifar-100-binary.tar.gz"),
    ("data isic2018 --data-dir isic", "line 2: dx is 'flu'"),
    ("data folder:folder", "at least two classes"),
    ("data folder:pictures --image-size 16", "0.png: does not decode as a picture"),
    ("data npz:good.npz --partition-file text.pth", "--partition-file text.pth"),
    ("export", "required: RUN_DIR, FILE"),
    ("export finished", "required: FILE"),
    ("export missing new.safetensors", "RUN_DIR missing: is not a run directory"),
    ("export folder new.safetensors", "RUN_DIR folder: is not a run directory"),
    ("export list new.safetensors", "not readable JSON"),
    ("export finished new.npz", "FILE new.npz: must end in"),
    ("export finished nowhere/new.safetensors", "must be in an existing folder"),
    ("export finished text.safetensors", "already exists; add --force"),
    ("export finished new.safetensors --seed 1", "unrecognized arguments"),
    ("report", "required: DIR"),
    ("report finished --rounds 3", "unrecognized arguments: --rounds 3"),
    ("report finished --format=", "--format : must be one of html, md, csv, png"),
    ("report finished", "DIR finished: has no metrics yet"),
    ("report missing", "DIR missing: is not a run directory"),
    ("plan --memory 12parsec", "--memory 12parsec: must be a number above 0, with an optional unit"),
    ("plan --flops 0", "--flops 0: must be a number above 0"),
    ("plan --method m/nothing.py", "holds no method"),
    ("plan --config c/key.toml", "--config c/key.toml: bata is not a setting; did you mean beta?"),
    ("plan --config c/grid.toml", "--config c/grid.toml: [grid] works only with the command grid"),
    ("grid --config c/key.toml --set beta=1,2", "bata is not a setting; did you mean beta?"),
    ("grid --config c/good.toml", "--set : is missing"),
    ("grid --config c/grid.toml --beta 3", "--set : is missing"),
    ("grid --config c/files.toml", 'method = "./mine.py": a Python file is run only if the command names it'),
    ("grid --config foreign/config.json --set beta=1,2", "give it as --method PATH"),
    ("grid --config c/method.toml --set beta=1,2", "give it as --method PATH"),
    ("grid --config c/own.toml --set beta=1,2", "--fedirm-factor 3: is a setting of the method fedirm, which no cell"),
    ("reproduce table1 --config c/key.toml", "bata is not a setting; did you mean beta?"),
    ("reproduce table1 --config c/grid.toml", "[grid] works only with the command grid"),
    ("reproduce table1 --config c/clients.toml", "--clients 8: is decided by the table's rows (--clients 8: from c/cl"),
    ("reproduce table1 --config c/method.toml", "give it as --method PATH"),
    ("reproduce table0 --config finished/config.json", "TABLE table0: must be one of table1"),
    ("evaluate finished --config c/good.toml", "unrecognized arguments: --config"),
    ("plan --subset-size 11", "--subset-size 11: must be from 1 to --clients 10"),
    ("reproduce", "required: TABLE"),
    ("reproduce table0", "TABLE table0: must be one of table1"),
    ("reproduce table1 --seeds 0", "--seeds 0: must be a whole number from 1 to 9999"),
    ("reproduce table1 --seeds many", "--seeds many"),
    ("reproduce table1 --rounds 0", "fedavg_upper does not fit: --rounds 0"),
    ("reproduce table1 --image-size 18", "TABLE table1: fedavg_upper does not fit: --image-size 18"),
    ("reproduce table1 --model resnet18 --image-size 8", "--image-size 8"),
    ("reproduce table1 --dataset none", "--dataset none"),
    ("reproduce table1 --dataset npz:cut.npz", "not a readable npz"),
    ("reproduce table1 --dataset svhn --data-dir missing", "put train_32x32.mat"),
    ("reproduce table4 --dataset synthetic:train=200", "--min-client-size 10"),
    ("reproduce table7 --clients 3", "unrecognized arguments: --clients 3"),
    ("reproduce cbafed", "TABLE cbafed: must be one of table1, "),
    ("reproduce table1 --server-labels 5", "--server-labels 5: is decided by the table's rows"),
    ("reproduce cbafed-table1 --sampling all", "--sampling all: is decided by the table's rows"),
    ("reproduce cbafed-table1 --cbafed-tail", "--cbafed-tail True: is decided by the table's rows"),
    ("reproduce cbafed-table1 --local-epochs 2", "TABLE cbafed-table1: fedavg_plus does not fit: --method cbafed: has"),
    ("reproduce semianagg --clients 3", "unrecognized arguments: --clients 3"),
    ("reproduce semianagg --method fixmatch --fixmatch-threshold 2", "--fixmatch-threshold 2.0: must be"),
    ("reproduce sage --gamma 0", "--gamma 0.0: must be a number above 0, or iid"),
    ("reproduce sage --train-fraction 2", "--train-fraction 2.0: must be a number"),
    ("reproduce sage --classes-per-client 2", "--classes-per-client 2: cannot be combined with --gamma"),
    ("reproduce semifl --gamma 0.3", "--gamma 0.3: is decided by the table's rows"),
    ("reproduce semifl --rounds 0", "--rounds 0: must be a whole number of at least 1"),
    ("reproduce semifl --server-labels 0", "--server-labels 0: must be a whole number of at least 1"),
    (
        "reproduce semifl --server-labels 2000",
        "--server-labels 2000: the training set has only 1200 samples of class 0",
    ),
    ("reproduce table1 --method sso --fedirm-factor -1", "--fedirm-factor -1.0: must be a number of at least 0"),
    ("reproduce table1 --method fedirm", "--method fedirm: is already in the table"),
    ("reproduce table2 --fedirm-factor 3", "--fedirm-factor 3.0: is a setting of the method fedirm, which no cell has"),
    ("reproduce table2 --method m/nothing.py", "holds no method"),
    ("reproduce table1 --out good.npz", "cannot be written"),
    ("reproduce table2 --out table", "summary.json there is not that of a run"),
    ("reproduce table2 --out table --rounds 10", "must be at least 1000"),
    ("reproduce table2 --out table --beta 3", "beta was 10000.0 and is 3.0"),
    ("grid", "--set : is missing"),
    ("grid --set bet=1", "--set bet=1: must be NAME=VALUE,VALUE,... with NAME one of"),
    ("grid --set subset_size=2,11", "--subset-size 11: must be from 1 to --clients 10"),
    ("grid --set clients=3,4 --dataset npz:clients.npz", "--clients 3: npz:clients.npz says which of 4 clients"),
    ("grid --set beta=-1,2", "--beta -1.0: must be a number of at least 0"),
    ("grid --set beta=1 --seeds 0", "--seeds 0: must be a whole number from 1 to 9999"),
    ("grid --set beta=1 --grid-devices x", "--grid-devices x: must be a whole number of at least 1"),
    ("grid --set beta=1 --cells-at-once 0", "--cells-at-once 0: must be a whole number of at least 1"),
    (f"grid --set beta=1 --cells-at-once {'9' * 5000}", "must be a whole number of at least 1"),
    ("grid --set beta=1 --init-from nowhere", "--init-from nowhere: is not a run directory"),
    ("grid --set partition_file=a/b.npz,a-b.npz", "--set partition_file-a-b.npz, seed 0: two cells would have"),
    ("grid --set beta=1 --coordinator here", "--coordinator here: needs --num-processes, --process-id as well"),
    ("grid --set beta=1,2 --fedirm-factor 3", "--fedirm-factor 3.0: is a setting of the method fedirm, which no cell"),
    ("grid --set fedirm-factor=1,2", "--fedirm-factor 1.0: is a setting of the method fedirm, which no cell has"),
    (
        "grid --set method=sso,fedirm --set fedirm-factor=1,2",
        "--set fedirm_factor: belongs to one method; with several in --set method",
    ),
    ("grid --set method=mine.py,sso --set mine-threshold=0.5,0.9", "--set mine_threshold: belongs to one method"),
    ("grid --set method=mine.py --set mine-threshold=0.5,2", "--mine-threshold 2.0: must be a number from 0 to 1"),
    ("grid --set method=sso,nowhere.py", "--method nowhere.py: cannot be read: No such file"),
    # What argparse alone would take for a list.
    ("train --beta=--", "--beta: expected one argument"),
    ("train --out=--", "--out: expected one argument"),
    ("grid --set=--", "--set: expected one argument"),
    # Natural federations.
    ("train --dataset npz:ids.npz", "train_clients must be whole numbers or strings, not float64"),
    ("train --dataset npz:below.npz", "train_clients must be non-negative whole numbers, but holds -1"),
    ("train --dataset npz:column.npz", "train_clients must be one client per image (20), not of shape (20, 1)"),
    ("train --dataset npz:clients.npz --labeled-clients 5", "--labeled-clients 5: must be from 1 to --clients 4"),
    ("train --dataset npz:clients.npz --min-client-size 3", "--min-client-size 3: npz:clients.npz says which client"),
    ("train --dataset npz:clients.npz --classes-per-client 2", "--classes-per-client 2: npz:clients.npz says which"),
    ("train --dataset npz:good.npz --partition natural", "npz:good.npz does not name its clients; must be drawn"),
    (
        "plan --dataset npz:clients.npz --partition drawn --clients 30",
        "--min-client-size 10: 20 samples for 30 clients",
    ),
    ("data folder:both", "both: holds both clients and train; must hold one of them"),
    ("data folder:nobody", "nobody: clients must hold a folder for each client"),
    ("data folder:idle", "idle: the client 'ben' holds no picture"),
    ("data folder:idle --clients 3", "--clients 3: folder:idle says which of 2 clients holds each sample"),
    # Downloads into a place that is none.
    ("data svhn --download --data-dir good.npz", "--data-dir good.npz: train_32x32.mat cannot be written there: Not a"),
    ("train --dataset cifar10 --download --data-dir good.npz", "cifar-10-python.tar.gz cannot be written there: Not a"),
    # Config files with a grid, and stored ones.
    ("grid --config c/seed.toml", "c/seed.toml: seed in [grid]: to vary the seed, give seeds = N"),
    ("grid --config c/seeds.toml", "c/seeds.toml: seeds = 0: must be a whole number from 1 to 9999"),
    ("grid --config c/none.toml", "c/none.toml: beta = a list: must be a list of values in [grid]"),
    ("grid --config c/same.toml", "c/same.toml: beta in [grid] holds a value twice"),
    ("grid --config c/both.toml", "c/both.toml: beta is both a setting and in [grid]; give only one"),
    ("grid --config c/number.toml", "c/number.toml: grid = 3: must be a table of lists"),
    ("grid --config c/word.toml", 'c/word.toml: beta = "fast": must be a number of at least 0'),
    ("train --config c/date.toml", "c/date.toml: rounds = 2020-01-01: must be a whole number of at least 1"),
    ("train --config c/true.toml", "c/true.toml: rounds = true: must be a whole number of at least 1"),
    ("train --config c/inside.toml", "c/inside.toml: train is not a setting;"),
    ("train --config c/control.toml", "must not contain control characters"),
    ("train --config c/infinity.toml", "c/infinity.toml: beta = Infinity: must be a number of at least 0"),
    ("train --config c/nan.json", "c/nan.json: beta = NaN: must be a number of at least 0"),
    ("plan --config c/hash.json", "c/hash.json: method_hash = 3: must be the hash of a file"),
    ("plan --config c/given.json", "c/given.json: given = 3: must be a list of names of settings"),
    ("plan --config c/names.json", "c/names.json: bata is not a setting; did you mean beta?"),
    # Method files.
    ("train --method m/empty.py", "--method m/empty.py: holds no method: it must define a function method"),
    ("train --method m/presets.py", "--method m/presets.py: PRESETS must hold a dictionary for each preset"),
    ("train --method m/preset.py", "--method m/preset.py: its DEFAULTS name bet, which is not a setting"),
    ("train --method m/computed.py", "--method m/computed.py: line 1: NUMBERS must be a literal: the file is not run"),
    ("train --method m/words.py", "--method m/words.py: words_n takes words, not numbers: put it into CHOICES"),
    ("train --method m/choice.py", "--method m/choice.py: n has the default c, which must be one of a, b"),
    ("train --method m/flap.py", "--method m/flap.py: its REFUSES name flap, which is not a setting"),
    ("plan --method m/dashed-name.py", "--method m/dashed-name.py: its name 'dashed-name' must be lower-case letters"),
    ("plan --method m/called.py", "--method m/called.py: its name 3 must be lower-case letters"),
    # Processes, targets and reports.
    ("train --num-processes 2", "--num-processes 2: needs --coordinator, --process-id as well"),
    ("train --coordinator a:0 --num-processes 2 --process-id 0", "--coordinator a:0: must be HOST:PORT"),
    ("train --coordinator a:1 --num-processes 0 --process-id 0", "--num-processes 0: must be a whole number from 1"),
    ("train --coordinator a:1 --num-processes 2 --process-id 2", "--process-id 2: must be from 0 to 1"),
    ("plan --target tpu9", "--target tpu9: must be one of"),
    ("report good.npz", "DIR good.npz: is not a run directory"),
    ("report finished --out page.txt", "--out page.txt: must end in .html, .md, .csv, .png"),
    ("report finished --format html --out page.md", "--out page.md: must end in .html"),
]
CASES = [(f"train {line}", said) for line, said in TRAIN] + OTHERS
BODY = "\ndef method(config): pass\n"
FILES = {
    "mine.py": MINE,
    "m/mine.py": MINE + "# changed\n",
    "m/Mine.py": MINE,
    "m/rscfed.py": MINE,
    "m/resnet18.py": "def network(config, classes): pass\n",
    "m/syntax.py": "def method(config)\n",
    "m/nothing.py": "NUMBERS = {}\nmethod = 3\n",
    "m/no_default.py": "NUMBERS = {'n': (None, '0..1', 'help')}" + BODY,
    "m/pair.py": "NUMBERS = {'n': ('0..1', 'help')}" + BODY,
    "m/outside.py": "NUMBERS = {'n': (2, '0..1', 'help')}" + BODY,
    "m/range.py": "NUMBERS = {'n': (2, 'a lot', 'help')}" + BODY,
    "m/number.py": "NUMBERS = {'N': (1, '0..1', 'help')}" + BODY,
    "m/listed.py": "NUMBERS = ['n']" + BODY,
    "m/samples.py": "SAMPLES = 'some'" + BODY,
    "m/defaults.py": "DEFAULTS = {'bet': 1}" + BODY,
    "m/refuses.py": "REFUSES = {'flip': 'it must not flip'}" + BODY,
    "m/labeled.py": "NUMBERS = {'share': (1, '0..1', 'help')}" + BODY,
    "m/num.py": "NUMBERS = {'processes': (1, '0..1', 'help')}" + BODY,
    "c/good.toml": "rounds = 3",
    "c/deep.json": "[" * 99_999,
    "c/large.json": " " * 200_000,
    "c/twice.json": '{"seed": 1, "seed": 2}',
    "c/twice.toml": "seed = 1\nseed = 2",
    "c/key.toml": "bata = 3",
    "c/key.json": '{"bata": 3}',
    "c/out.toml": "out = 'runs/a'",
    "c/grid.toml": "[grid]\nbeta = [1, 2]",
    "c/files.toml": "[grid]\nmethod = ['./mine.py']",
    "c/subset.toml": "subset_size = 11",
    "c/data.toml": "dataset = 'npz:missing.npz'",
    "c/labels.toml": "labeled_clients = 2",
    "c/clients.toml": "clients = 8",
    "c/own.toml": "fedirm_factor = 3",
    "c/name.toml": "method = 'fedprox'",
    "c/method.toml": "method = './mine.py'",
    "c/model.toml": "model = './net.py'",
    "c/seed.toml": "[grid]\nseed = [1, 2]",
    "c/seeds.toml": "[grid]\nseeds = 0\nbeta = [1]",
    "c/none.toml": "[grid]\nbeta = []",
    "c/same.toml": "[grid]\nbeta = [1, 1]",
    "c/both.toml": "beta = 3\n[grid]\nbeta = [1, 2]",
    "c/number.toml": "grid = 3",
    "c/word.toml": "[grid]\nbeta = [1, 'fast']",
    "c/date.toml": "rounds = 2020-01-01",
    "c/true.toml": "rounds = true",
    "c/inside.toml": "[train]\nrounds = 3",
    "c/control.toml": 'dataset = "a\\u0000b"',
    "c/infinity.toml": "beta = inf",
    "c/nan.json": '{"beta": NaN}',
    "c/hash.json": '{"method_hash": 3}',
    "c/given.json": '{"given": 3, "rounds": 5}',
    "c/names.json": '{"given": ["bata"], "rounds": 5}',
    "m/empty.py": "",
    "m/presets.py": "PRESETS = {'paper': 3}" + BODY,
    "m/preset.py": "PRESETS = {'paper': {'bet': 1}}" + BODY,
    "m/computed.py": "NUMBERS = dict(n=1)" + BODY,
    "m/words.py": "NUMBERS = {'n': ('a', 'a|b', 'help')}" + BODY,
    "m/choice.py": "CHOICES = {'n': ('c', 'a|b', 'help')}" + BODY,
    "m/flap.py": "REFUSES = {'flap': 'no'}" + BODY,
    "m/dashed-name.py": MINE,
    "m/called.py": "NAME = 3" + BODY,
    "text.npz": "hello",
    "text.safetensors": "hello, this is no such file",
    "text.pth": "hello, this is no such file",
    "mat/train_32x32.mat": "hello, this is no such file",
    "tar/cifar-100-python.tar.gz": "hello, this is no such file",
    "isic/HAM10000_metadata.csv": "lesion_id,image_id,dx\nL1,I1,flu\n",
    "parts/metrics.jsonl": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files and run directories with something wrong in each."""
    here = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    (here / "m" / "binary.py").write_bytes(bytes(range(256)))
    (here / "folder").mkdir()
    (here / "dangling").symlink_to(here / "nowhere" / "else")
    for place in ("both/clients/a/x", "both/train/x", "nobody/clients", "idle/clients/anna/x", "idle/clients/ben/y"):
        (here / place).mkdir(parents=True)
    (here / "idle" / "clients" / "anna" / "x" / "1.png").write_text("")
    write_data(here)
    write_runs(here)
    for number in range(5):
        (here / "pictures" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (here / "pictures" / "ab"[number % 2] / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
    batches = here / "pickle" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(pickle.dumps({b"data": eval}))
    return here


def write_data(here):
    """Data sets and partitions as npz files."""
    save_npz(here / "good.npz")
    whole = (here / "good.npz").read_bytes()
    (here / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (here / "flipped.npz").write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    (here / "nothing.npz").write_bytes(b"")
    with (here / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    shutil.copy(here / "good.npz", here / "noarray.npz")
    with zipfile.ZipFile(here / "noarray.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    save_npz(here / "pickle.npz", test_labels=np.array([{}] * 8))
    save_npz(here / "keys.npz", train_labels=None)
    save_npz(here / "dtype.npz", train_images=np.zeros((20, 8, 8, 3), np.float32))
    save_npz(here / "shape.npz", train_images=np.zeros((20, 8, 8), np.uint8))
    save_npz(here / "labels.npz", train_labels=np.arange(20) - 5)
    save_npz(here / "empty.npz", train_images=np.zeros((0, 8, 8, 3), np.uint8), train_labels=np.zeros(0, int))
    save_npz(here / "lengths.npz", train_labels=np.arange(19) % 4)
    save_npz(here / "owners.npz", train_clients=np.arange(19) % 4)
    save_npz(here / "clients.npz", train_clients=np.arange(20) % 4)
    save_npz(here / "ids.npz", train_clients=np.arange(20.0))
    save_npz(here / "below.npz", train_clients=np.arange(20) - 1)
    save_npz(here / "column.npz", train_clients=np.arange(20)[:, None])
    save_npz(here / "floats.npz", train_labels=np.arange(20.0) % 4)
    save_npz(here / "one.npz", train_labels=np.zeros(20, int))
    save_npz(here / "more.npz", test_labels=np.arange(8))
    np.savez(here / "float.npz", client_0=np.arange(5.0))
    np.savez(here / "range.npz", client_0=np.arange(10), client_1=np.array([12_000]))
    np.savez(here / "pair.npz", client_0=np.arange(10), client_1=np.arange(10, 20))
    np.savez(here / "twice.npz", client_0=np.arange(10), client_1=np.array([5]))


def write_runs(here):
    """Run directories without a model."""
    good = Config().to_dict()
    stored = {
        "finished": json.dumps(good),
        "old": json.dumps({name: value for name, value in good.items() if name not in HASHES}),
        "foreign": json.dumps(Config(method=str(here / "mine.py")).to_dict()),
        "named": json.dumps(good | {"model": "mine.py"}),
        "list": "[1]",
        "wrong": json.dumps(good | {"rounds": -5}),
        "typed": json.dumps(good | {"lr_labeled": "fast"}),
        "sides": json.dumps(good | {"resize": "../x"}),
        "zero": json.dumps(good | {"resize": "5/0"}),
    }
    for name, text in stored.items():
        (here / name / "checkpoints").mkdir(parents=True)
        (here / name / "config.json").write_text(text)
    (here / "binary" / "checkpoints").mkdir(parents=True)
    (here / "binary" / "config.json").write_bytes(bytes(range(256)))
    cell = here / "table" / "cells" / "basic-seed0"
    cell.mkdir(parents=True)
    (cell / "config.json").write_text(json.dumps(Config(method="fed_consist", rounds=1000).to_dict()))
    (cell / "summary.json").write_text("{}")


def everything_in(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def assert_refused(capsys, *arguments):
    """Runs a command that must be refused and returns the line that it says."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("rscfed-jax")
    assert "error: " in err
    return err


@pytest.mark.parametrize(("line", "said"), CASES, ids=[line[:80] for line, _ in CASES])
def test_bad_input_is_refused_in_one_line_before_jax_starts_and_nothing_is_written(
    folder, tmp_path, monkeypatch, capsys, line, said
):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "start_jax", lambda *_: pytest.fail("JAX was started"))
    before = everything_in(folder)
    assert said in assert_refused(capsys, *line.split(" "))
    assert everything_in(folder) == before
    assert [path for path in tmp_path.glob("rscfed_jax/**/*") if path.is_file()] == []


def test_a_refusal_does_not_import_jax(folder):
    lines = ["train --subset-size 11", "train --dataset npz:missing", "train --init-from missing.safetensors"]
    lines += ["train --method m/outside.py", "train --out foreign --resume --method m/mine.py", "train --model mine.py"]
    lines += ["evaluate missing.safetensors", "export folder new.safetensors", "report missing", "plan --flops 0"]
    lines += ["grid --set method=mine.py,sso --set mine-threshold=0.5", "reproduce table2 --fedirm-factor 3"]
    lines += ["train --config c/key.toml", "plan --config foreign/config.json", "grid --config c/grid.toml --beta 1"]
    code = (
        "import sys; from rscfed_jax.cli import main\n"
        f"assert [main(line.split()) for line in {lines}] == [2] * {len(lines)}\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=folder)


IMPORTS = "import flax.linen as nn\nimport jax.numpy as jnp\nfrom rscfed_jax import Method\n"
NETWORK = (
    IMPORTS
    + "class Net(nn.Module):\n    classes: int = 3\n    dtype: type = jnp.float32\n"
    + "    def __call__(self, images, *, train, valid=None):\n        return {}\n"
)
# What only running a file can tell: its text, and what the line must say.
AFTER_JAX = {
    "method fails.py": (
        "def method(config):\n    return 1 / 0\n",
        "--method fails.py: fails with ZeroDivisionError: division by zero",
    ),
    "method other.py": ("def method(config):\n    return 3\n", "its function `method` returns int, not a Method"),
    "method imports.py": (
        "import nowhere\ndef method(config): pass\n",
        "--method imports.py: fails with ModuleNotFoundError: No module named 'nowhere'",
    ),
    "model fails.py": (
        "def network(config, classes):\n    return 1 / 0\n",
        "--model fails.py: fails with ZeroDivision",
    ),
    "model other.py": ("def network(config, classes):\n    return 3\n", "returns int, not a module"),
    "model shape.py": (
        NETWORK.format("images.reshape(7, 7)") + "def network(config, classes):\n    return Net()\n",
        "--model shape: does not take images of 3 x 16 x 16: TypeError",
    ),
    "model logits.py": (
        NETWORK.format("jnp.zeros((images.shape[-1], 7))") + "def network(config, classes):\n    return Net()\n",
        "--model logits: must give logits [2, 3] for 2 images, not (2, 7)",
    ),
}


@pytest.mark.parametrize("which", AFTER_JAX)
def test_a_file_that_turns_out_wrong_when_it_runs_is_refused_in_one_line(tmp_path, monkeypatch, capsys, which):
    setting, name = which.split()
    text, said = AFTER_JAX[which]
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for command in (["train", "--out", "run"], ["grid", "--set", "beta=1,2", "--out", "run", "--quiet"], ["plan"]):
        assert said in assert_refused(capsys, *command, *flags_of(SMALL | {setting: name}))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def run_quietly(*arguments):
    """Exit code and stderr of a command; hypothesis wants no fixture that changes between its examples."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = run(*arguments)
    return code, said.getvalue()


VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)


class Taken(BaseException):  # which no handler of the program catches
    """The settings were right."""


def take(*_arguments, **_settings):
    """Stands where training would begin."""
    raise Taken


@given(setting=st.sampled_from([each for each in SETTINGS.values() if each.kind is not SWITCH]), value=VALUES)
def test_any_value_of_any_flag_is_taken_or_refused_in_one_line(setting, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "check", take)
        try:
            code, said = run_quietly("train", f"{setting.flag}={value}")
        except Taken:
            assert setting.kind.accepts(setting.kind.read(value))
            return
    assert code == 2
    assert said.count("\n") == 1
    assert setting.flag in said


CONTENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(setting=st.sampled_from([*SETTINGS.values()]), value=CONTENTS, whole=st.booleans())
def test_any_value_in_a_config_file_is_taken_or_refused_in_one_line(tmp_path_factory, setting, value, whole):
    path = tmp_path_factory.mktemp("stored") / "config.json"
    path.write_text(json.dumps((Config().to_dict() if whole else {}) | {setting.name: value}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "check", take)
        try:
            code, said = run_quietly("train", "--config", path)
        except Taken:
            assert value is None or setting.kind.accepts(value)
            return
    assert code == 2
    assert said.count("\n") == 1
    assert setting.name in said.replace("-", "_")
    assert str(path) in said


# Where a file of random bytes is put, what it begins with, and who reads it.
READERS: dict[str, tuple[str, bytes, list[str]]] = {
    "npz": ("data.npz", b"", ["data", "npz:data.npz"]),
    "zip": ("data.npz", b"PK\x03\x04", ["data", "npz:data.npz"]),
    "partition": ("p.npz", b"", ["data", "synthetic:train=50,test=20,classes=2,size=4", "--partition-file", "p.npz"]),
    "torch partition": ("p.pth", b"PK\x03\x04", ["data", "fashion", "--partition-file", "p.pth"]),
    "mat": ("train_32x32.mat", b"", ["data", "svhn", "--data-dir", "."]),
    "mat 5": (
        "train_32x32.mat",
        b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM",
        ["data", "svhn", "--data-dir", "."],
    ),
    "pickle": ("cifar-100-python/train", b"\x80\x02", ["data", "cifar100", "--data-dir", "."]),
    "gzip": ("cifar-100-python.tar.gz", b"\x1f\x8b\x08", ["data", "cifar100", "--data-dir", "."]),
    "csv": ("HAM.csv", b"lesion_id,image_id,dx\n", ["data", "isic2018", "--data-dir", "."]),
    "safetensors": ("m.safetensors", b"", ["evaluate", "m.safetensors"]),
    "safetensors header": ("m.safetensors", b"\x20" + bytes(7) + b"{", ["train", "--init-from", "m.safetensors"]),
    "torch model": ("m.pth", b"PK\x03\x04", ["evaluate", "m.pth"]),
    "config": ("run/config.json", b"", ["evaluate", "run"]),
    "config of a run to resume": ("run/config.json", b"{", ["train", "--out", "run", "--resume"]),
    "config of a run to export": ("run/config.json", b"[", ["export", "run", "m.safetensors"]),
    "config to repeat": ("config.json", b"", ["train", "--config", "config.json"]),
    "settings to repeat": ("config.json", b'{"rounds": ', ["plan", "--config", "config.json"]),
    "toml": ("a.toml", b"rounds = ", ["grid", "--config", "a.toml"]),
    "summary": ("t/cells/basic-seed0/summary.json", b"", ["reproduce", "table2", "--out", "t", "--dry-run"]),
    "method": ("mine.py", b"", ["train", "--method", "mine.py"]),
    "declarations": ("mine.py", b"NUMBERS = ", ["plan", "--method", "mine.py"]),
    "network": ("net.py", b"def network(", ["train", "--model", "net.py"]),
}


@pytest.mark.parametrize("which", READERS)
@settings(max_examples=10)
@given(content=st.binary(max_size=300))
def test_random_bytes_as_input_files_are_refused_in_one_line(tmp_path_factory, which, content):
    name, start, arguments = READERS[which]
    here = tmp_path_factory.mktemp("random")
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_bytes(start + content)
    (here / "run" / "checkpoints").mkdir(parents=True, exist_ok=True)
    before = everything_in(here)
    with contextlib.chdir(here):
        code, said = run_quietly(*arguments)
    assert code == 2
    assert said.count("\n") == 1
    assert everything_in(here) == before


# What a declaration may be instead of (default, range, help).
DECLARED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0..1", "above 0"]),
    lambda inner: st.tuples(inner, inner, inner) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@given(name=st.text(max_size=6) | st.just("n"), declared=DECLARED, literal=st.sampled_from(["NUMBERS", "CHOICES"]))
def test_any_declaration_is_taken_or_refused_in_one_line(tmp_path_factory, name, declared, literal):
    here = tmp_path_factory.mktemp("declared")
    (here / "mine.py").write_text(f"{literal} = {{{name!r}: {declared!r}}}\n{MINE.replace('NUMBERS', 'OTHERS')}")
    with contextlib.chdir(here), pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "check", take)
        try:
            code, said = run_quietly("train", "--method", "mine.py")
        except Taken:
            return
    assert code == 2
    assert said.count("\n") == 1
    assert "--method mine.py: " in said


@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_in_an_npz_file_is_refused_or_harmless(tmp_path_factory, position, mask):
    here = tmp_path_factory.mktemp("flip")
    rng = np.random.default_rng(0)
    save_npz(here / "data.npz", train_images=rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    content = bytearray((here / "data.npz").read_bytes())
    content[int(position * len(content))] ^= mask
    (here / "data.npz").write_bytes(content)
    flags = ["--clients", "2", "--min-client-size", "1", "--gamma", "iid"]
    code, said = run_quietly("data", f"npz:{here}/data.npz", *flags)
    assert code in (0, 2)
    assert said.count("\n") == (code == 2)
